//! Plots as SVG. Text uses the viewer's fonts, so no fonts of this machine are needed.

use super::store::{Line, Table};
use benches::ends::Result;
use plotters::{
    coord::ranged1d::{DefaultFormatting, KeyPointHint},
    prelude::*,
};
use std::ops::Range;

const SIZE: (u32, u32) = (860, 440);
/// The part of the width that the names of the lines take.
const NAMES: f64 = 0.25;
/// Colours that can be told apart without seeing red or green (Okabe and Ito's palette).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
/// The vertical axis is logarithmic if the quotient of the largest and the smallest value exceeds this.
const WIDE: f64 = 8.0;

/// A linear scale with grid lines at chosen places.
struct Scale {
    range: Range<f64>,
    lines: Vec<f64>,
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.lines.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The vertical axis.
struct Axis {
    logarithmic: bool,
    low: f64,
    high: f64,
}

impl Axis {
    fn of(table: &Table) -> Self {
        let spots = || table.series.iter().flat_map(|line| &line.points);
        let low = spots().map(|spot| spot.least).fold(f64::INFINITY, f64::min);
        let high = spots().map(|spot| spot.most).fold(f64::MIN_POSITIVE, f64::max);
        let logarithmic = low > 0.0 && high / low > WIDE;
        Self { logarithmic, low: if logarithmic { low / 1.3 } else { 0.0 }, high: high * 1.1 }
    }

    fn place(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }

    /// Values that get a grid line: 1, 2 and 5 of each decade, or about five equal steps.
    fn ticks(&self) -> Vec<f64> {
        let decade = |power: f64| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powf(power));
        let all: Vec<f64> = if self.logarithmic {
            (-12..12).flat_map(|power| decade(power.into())).collect()
        } else {
            let steps = (-12..12).flat_map(|power| decade(power.into()));
            let step = steps.into_iter().find(|step| self.high / step <= 7.0).unwrap_or(self.high);
            (0..8).map(|count| f64::from(count) * step).collect()
        };
        all.into_iter().filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// A number without trailing zeros.
fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The points of a line: position on the horizontal axis, median, smallest and largest value.
fn points(line: &Line, places: &[&str], axis: &Axis) -> Vec<(f64, [f64; 3])> {
    let points = line.points.iter().filter_map(|spot| {
        let at = places.iter().position(|place| *place == spot.at)?;
        Some((at as f64, [spot.median, spot.least, spot.most].map(|value| axis.place(value))))
    });
    points.collect()
}

/// The plot of a section.
pub(super) fn draw(table: &Table) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let places = table.places();
        let axis = Axis::of(table);
        let count = places.len();
        let across = Scale {
            range: -0.3..(count as f64 - 0.7) / (1.0 - NAMES),
            lines: (0..count).map(|at| at as f64).collect(),
        };
        let up = Scale {
            range: axis.place(axis.low)..axis.place(axis.high),
            lines: axis.ticks().into_iter().map(|tick| axis.place(tick)).collect(),
        };
        let mut chart = ChartBuilder::on(&root)
            .caption(&table.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(across, up)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .x_desc(&table.across)
            .y_desc(&table.unit)
            .x_label_formatter(&|at| places.get(at.round() as usize).copied().unwrap_or_default().to_owned())
            .y_label_formatter(&|at| plain(if axis.logarithmic { 10_f64.powf(*at) } else { *at }))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(|error| error.to_string())?;
        for (line, colour) in table.series.iter().zip(COLOURS.iter().cycle()) {
            let points = points(line, &places, &axis);
            let middle = points.iter().map(|(at, [median, ..])| (*at, *median));
            chart
                .draw_series(LineSeries::new(middle, colour.stroke_width(2)).point_size(3))
                .map_err(|error| error.to_string())?
                .label(&line.name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            let bars = points
                .iter()
                .map(|(at, [_, least, most])| PathElement::new([(*at, *least), (*at, *most)], *colour));
            chart.draw_series(bars).map_err(|error| error.to_string())?;
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.2));
        labels.position(SeriesLabelPosition::MiddleRight).draw().map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}
