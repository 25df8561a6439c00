//! Both drawings are judged by parsers that are not ours, with texts that try to break out of them.

use rxe_ladder::{Class, Fate, Field, Hue, Ladder, Step};

const HOSTILE: &str =
    "</script><script>alert(1)</script> & \"quotes\" 'too' <!-- \u{0} \u{ffff} ]]> \u{202e}";

fn ladder(text: &str) -> Ladder {
    let mut ladder = Ladder::new(text);
    ladder.note(text);
    let (a, b) = (ladder.actor(text, text), ladder.actor("b", ""));
    let bad = ladder.class(Class::new(text, Hue::Red).about(text).notable());
    let field = || Field::new(text, text).note(text).with(Field::new("inner", text).folded());
    ladder.push(Step::arrow(a, b, 1_000, text).class(bad).field(field()));
    ladder.push(Step::arrow(b, a, 2_000, "lost").fate(Fate::Lost).arrived(3_000));
    ladder.push(Step::arrow(b, a, 2_500, "unseen").fate(Fate::Unseen));
    ladder.push(Step::event(a, 900_000_000, text));
    ladder
}

/// The page's diagram, as a browser's parser finds it: up to the first end of a script.
fn model(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"model\">").unwrap();
    let (json, _) = rest.split_once("</script").unwrap();
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_image_is_xml_whatever_the_texts_are() {
    for text in ["plain", HOSTILE, ""] {
        let svg = ladder(text).svg().to_string();
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
        let count = |name: &str| {
            document
                .descendants()
                .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", name)))
                .count()
        };
        assert_eq!(count("script"), 0);
        assert_eq!(count("circle"), 1);
        let ways = document
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with("way")));
        assert_eq!(ways.count(), 3);
    }
}

#[test]
fn an_arrow_leads_from_its_sender_s_line_to_its_receiver_s() {
    let svg = ladder("plain").svg().to_string();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let d = |class: &str| -> Vec<String> {
        let nodes = document.descendants().filter(|node| node.attribute("class") == Some(class));
        nodes.filter_map(|node| Some(node.attribute("d")?.to_owned())).collect()
    };
    let x = |path: &str| path[1..].split(' ').next().unwrap().to_owned();
    let lines: Vec<_> = d("life").iter().map(|path| x(path)).collect();
    let first = &d("way")[0];
    assert!(first.starts_with(&format!("M{} ", lines[0])), "{first}");
    assert!(first.contains(&format!("L{} ", lines[1])), "{first}");
    // A lost one does not get there.
    let lost = &d("way")[1];
    assert!(
        lost.starts_with(&format!("M{} ", lines[1])) && !lost.contains(&format!("L{} ", lines[0])),
        "{lost}"
    );
}

#[test]
fn a_pause_that_is_longer_than_usual_is_told() {
    let svg = ladder("plain").svg().to_string();
    assert!(svg.contains("900 ms later"), "{svg}");
    assert_eq!(svg.matches("later").count(), 1);
}

#[test]
fn the_page_holds_every_text_and_nothing_gets_out() {
    let page = ladder(HOSTILE).html().to_string();
    assert_eq!(page.matches("<script").count(), 2, "the diagram and our own script");
    let model = model(&page);
    assert_eq!(model["title"], HOSTILE);
    assert_eq!(model["actors"][0][1], HOSTILE);
    assert_eq!(model["classes"][0]["about"], HOSTILE);
    assert_eq!(model["steps"].as_array().unwrap().len(), 4);
    let fields = model["steps"][0][8].as_array().unwrap();
    let text = |at: usize| model["strings"][fields[at].as_u64().unwrap() as usize].clone();
    assert_eq!(
        (text(0), text(1), text(2), fields[3].as_u64()),
        (HOSTILE.into(), HOSTILE.into(), HOSTILE.into(), Some(2))
    );
    assert_eq!((text(4), fields[7].as_u64()), ("inner".into(), Some(1)));
}

/// No address but the name of the SVG namespace: nothing is fetched.
#[test]
fn the_page_needs_no_network() {
    let page = ladder("plain").html().to_string();
    let addresses: Vec<_> =
        page.match_indices("//").map(|(at, _)| &page[at.saturating_sub(8)..at + 14]).collect();
    let fetched = addresses.iter().filter(|text| text.contains("http") && !text.contains("//www.w3.org"));
    assert_eq!(fetched.count(), 0, "{addresses:?}");
    for word in ["src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn an_empty_diagram_is_drawn() {
    let empty = Ladder::new("nothing");
    assert!(roxmltree::Document::parse(&empty.svg().to_string()).is_ok());
    assert_eq!(model(&empty.html().to_string())["steps"].as_array().unwrap().len(), 0);
}

#[test]
#[should_panic(expected = "actors are not this ladder's")]
fn a_step_of_another_ladder_is_refused() {
    let mut other = Ladder::new("other");
    let actor = other.actor("a", "");
    Ladder::new("this").push(Step::event(actor, 0, ""));
}
