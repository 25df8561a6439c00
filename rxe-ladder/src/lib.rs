//! Ladder diagrams: messages between actors, from top to bottom. A [`Ladder`] has actors, and steps between or at them. Each
//! step has a label, classes (its kind) and a tree of fields. It is drawn as SVG ([`Ladder::svg`]), or as one HTML page
//! ([`Ladder::html`]). The page needs no network, and can be zoomed, searched and unfolded by mouse or keyboard.
//!
//! The meaning of the messages is up to the caller.
//!
//! ```
//! use rxe_ladder::{Class, Fate, Field, Hue, Ladder, Step};
//!
//! let mut ladder = Ladder::new("Two packets");
//! let (a, b) = (ladder.actor("10.0.0.1", "asks"), ladder.actor("10.0.0.2", "answers"));
//! let data = ladder.class(Class::new("data", Hue::Blue));
//! let lost = ladder.class(Class::new("lost", Hue::Red).notable().about("it never came"));
//! ladder.push(Step::arrow(a, b, 0, "WRITE psn 1").class(data).field(Field::new("psn", "1")));
//! ladder.push(Step::arrow(a, b, 900, "WRITE psn 2").class(lost).class(data).fate(Fate::Lost));
//! assert!(ladder.svg().to_string().starts_with("<svg"));
//! assert!(ladder.html().to_string().contains("WRITE psn 2"));
//! ```
#![forbid(unsafe_code)]

mod page;
mod svg;
mod text;

pub use page::Page;
pub use svg::Svg;
pub use text::{duration, moment};

/// An actor of a [`Ladder`]: one of its vertical lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ActorId(usize);

/// A class of a [`Ladder`]'s steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(usize);

/// A colour, with a meaning of the caller's choice. It differs between light and dark pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hue {
    /// For steps that are of little interest.
    Grey,
    /// Blue.
    Blue,
    /// Green.
    Green,
    /// Violet.
    Violet,
    /// Teal.
    Teal,
    /// For steps that are of interest.
    Orange,
    /// For errors.
    Red,
}

impl Hue {
    /// Its name in style sheets.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grey => "grey",
            Self::Blue => "blue",
            Self::Green => "green",
            Self::Violet => "violet",
            Self::Teal => "teal",
            Self::Orange => "orange",
            Self::Red => "red",
        }
    }

    /// Its colour on a white page.
    #[must_use]
    pub const fn colour(self) -> &'static str {
        match self {
            Self::Grey => "#6b7280",
            Self::Blue => "#1d5fbf",
            Self::Green => "#1a7f37",
            Self::Violet => "#7c3aad",
            Self::Teal => "#0f766e",
            Self::Orange => "#b45309",
            Self::Red => "#c81e1e",
        }
    }
}

/// A class of steps: a line of the legend. A step may have several classes, and the first determines its colour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    name: String,
    about: String,
    hue: Hue,
    notable: bool,
}

impl Class {
    /// A class with a short name.
    #[must_use]
    pub fn new(name: impl Into<String>, hue: Hue) -> Self {
        Self { name: name.into(), about: String::new(), hue, notable: false }
    }

    /// A sentence that explains this class.
    #[must_use]
    pub fn about(mut self, text: impl Into<String>) -> Self {
        self.about = text.into();
        self
    }

    /// Steps of this class are of special interest: the page has a key that goes from one to the next, and marks them at its
    /// edge.
    #[must_use]
    pub const fn notable(mut self) -> Self {
        self.notable = true;
        self
    }
}

/// The fate of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fate {
    /// It arrives.
    #[default]
    Arrives,
    /// It is lost: the arrow ends in a cross.
    Lost,
    /// It was not seen, but other messages show that it was sent: the arrow is dotted.
    Unseen,
}

/// A named value with inner fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    name: String,
    value: String,
    note: String,
    inside: Vec<Self>,
    folded: bool,
}

impl Field {
    /// A field; either part may be empty.
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            note: String::new(),
            inside: Vec::new(),
            folded: false,
        }
    }

    /// The meaning of the value.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = text.into();
        self
    }

    /// Adds an inner field.
    #[must_use]
    pub fn with(mut self, field: Self) -> Self {
        self.inside.push(field);
        self
    }

    /// The inner fields are folded at first.
    #[must_use]
    pub const fn folded(mut self) -> Self {
        self.folded = true;
        self
    }
}

impl Extend<Self> for Field {
    fn extend<T: IntoIterator<Item = Self>>(&mut self, fields: T) {
        self.inside.extend(fields);
    }
}

/// One row: a message between two actors, or an event at one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    from: ActorId,
    to: ActorId,
    sent: u64,
    arrived: Option<u64>,
    fate: Fate,
    label: String,
    classes: Vec<ClassId>,
    fields: Vec<Field>,
}

impl Step {
    /// A message from one actor to another, sent at `sent` nanoseconds after a moment of the caller's choice.
    #[must_use]
    pub fn arrow(from: ActorId, to: ActorId, sent: u64, label: impl Into<String>) -> Self {
        let (fate, classes, fields) = (Fate::Arrives, Vec::new(), Vec::new());
        Self { from, to, sent, arrived: None, fate, label: label.into(), classes, fields }
    }

    /// Something that happens at an actor, such as a timeout.
    #[must_use]
    pub fn event(at: ActorId, when: u64, label: impl Into<String>) -> Self {
        Self::arrow(at, at, when, label)
    }

    /// The time of arrival in nanoseconds, if known. A time before `sent` counts as `sent`.
    #[must_use]
    pub fn arrived(mut self, when: u64) -> Self {
        self.arrived = Some(when.max(self.sent));
        self
    }

    /// The fate of the message. By default it arrives.
    #[must_use]
    pub const fn fate(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }

    /// Adds a class. The first one determines the colour.
    #[must_use]
    pub fn class(mut self, class: ClassId) -> Self {
        self.classes.push(class);
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, field: Field) -> Self {
        self.fields.push(field);
        self
    }

    const fn is_event(&self) -> bool {
        self.from.0 == self.to.0
    }
}

impl Extend<Field> for Step {
    fn extend<T: IntoIterator<Item = Field>>(&mut self, fields: T) {
        self.fields.extend(fields);
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Actor {
    name: String,
    about: String,
}

/// A ladder diagram. Steps are drawn in the order in which they are pushed, which should be the order of their times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ladder {
    title: String,
    notes: Vec<String>,
    actors: Vec<Actor>,
    classes: Vec<Class>,
    steps: Vec<Step>,
}

impl Ladder {
    /// An empty diagram.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        let (notes, actors, classes, steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { title: title.into(), notes, actors, classes, steps }
    }

    /// A sentence below the title.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds an actor: a vertical line to the right of the others, with a line of text below its name.
    pub fn actor(&mut self, name: impl Into<String>, about: impl Into<String>) -> ActorId {
        self.actors.push(Actor { name: name.into(), about: about.into() });
        ActorId(self.actors.len() - 1)
    }

    /// Adds a class: a line of the legend.
    pub fn class(&mut self, class: Class) -> ClassId {
        self.classes.push(class);
        ClassId(self.classes.len() - 1)
    }

    /// Adds a step: a row below the others.
    ///
    /// # Panics
    /// If an actor or a class is not in this ladder.
    pub fn push(&mut self, step: Step) {
        let is_ours = step.from.0.max(step.to.0) < self.actors.len();
        assert!(is_ours, "the step's actors are not this ladder's");
        let classes = step.classes.iter().all(|class| class.0 < self.classes.len());
        assert!(classes, "the step's classes are not this ladder's");
        self.steps.push(step);
    }

    /// Rows so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is no row yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The diagram as an SVG image, which is written by its `Display`. Every row has a tooltip with its fields.
    #[must_use]
    pub const fn svg(&self) -> Svg<'_> {
        Svg::new(self)
    }

    /// The diagram as an HTML page, which is written by its `Display`.
    #[must_use]
    pub const fn html(&self) -> Page<'_> {
        Page::new(self)
    }

    /// The class that determines a step's colour.
    fn hue(&self, step: &Step) -> Hue {
        step.classes.first().map_or(Hue::Grey, |class| self.classes[class.0].hue)
    }

    /// The pause before a row, if it is much longer than usual in this diagram.
    fn pauses(&self) -> Vec<Option<u64>> {
        let gaps: Vec<u64> =
            self.steps.windows(2).map(|pair| pair[1].sent.saturating_sub(pair[0].sent)).collect();
        let mut sorted = gaps.clone();
        sorted.sort_unstable();
        let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
        let long = usual.saturating_mul(text::LONG_PAUSE).max(text::SHORTEST_PAUSE);
        let mut pauses = vec![None; self.steps.len()];
        for (pause, gap) in pauses.iter_mut().skip(1).zip(gaps) {
            *pause = (gap >= long).then_some(gap);
        }
        pauses
    }
}
