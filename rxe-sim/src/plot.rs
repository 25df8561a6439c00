//! Figures (SVG): queues, goodput and rates over time, slowdown by size.

use crate::{
    report::Report,
    units::{MICRO, SECOND},
    world::{Sample, World},
};
use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    coord::combinators::IntoLogRange,
    prelude::{IntoDrawingArea, PathElement, SVGBackend},
    series::LineSeries,
    style::{BLACK, Color, RGBColor, WHITE},
};
use std::{error::Error, path::Path};

/// Colours of lines. People with colour blindness can tell them apart, too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A line of a figure.
#[derive(Clone, Debug)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    /// The title above it.
    pub title: &'a str,
    /// The label of the x axis.
    pub x: &'a str,
    /// The label of the y axis.
    pub y: &'a str,
    /// Whether the x axis is logarithmic.
    pub log_x: bool,
    /// The lines.
    pub lines: &'a [Line],
}

/// A number for an axis, without trailing zeros. Thousands and millions of bytes are abbreviated.
fn short(number: f64) -> String {
    let (divided, unit) = match number.abs() {
        1e6.. => (number / 1e6, "M"),
        1e4.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    format!("{}{unit}", (divided * 100.0).round() / 100.0)
}

/// Draws a figure. If there are no points it writes no file, which is not an error.
///
/// # Errors
/// The file system's error.
pub fn draw(path: &Path, figure: &Figure<'_>) -> Result<(), Box<dyn Error>> {
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        return Ok(());
    }
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(f64::MIN, f64::max);
    let least = points().map(|point| point.0).fold(f64::MAX, f64::min);
    let (right, top) = (most(|point| point.0), most(|point| point.1).max(1e-9) * 1.1);
    let root = SVGBackend::new(path, (900, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .margin_right(40)
        .x_label_area_size(45)
        .y_label_area_size(70);
    macro_rules! lines {
        ($chart:expr) => {{
            let mut chart = $chart;
            let mut mesh = chart.configure_mesh();
            mesh.x_label_formatter(&|x| short(*x)).y_label_formatter(&|y| short(*y));
            mesh.x_desc(figure.x).y_desc(figure.y).light_line_style(WHITE).draw()?;
            for (index, line) in figure.lines.iter().enumerate() {
                let style = COLOURS[index % COLOURS.len()].stroke_width(2);
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                    .label(line.name.clone())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
            // If there are more lines than colours, a legend would not help, and would cover the lines.
            if figure.lines.len() <= COLOURS.len() {
                chart
                    .configure_series_labels()
                    .position(SeriesLabelPosition::UpperRight)
                    .background_style(WHITE.mix(0.8))
                    .border_style(BLACK.mix(0.3))
                    .draw()?;
            }
        }};
    }
    if figure.log_x {
        lines!(builder.build_cartesian_2d((least.max(1.0)..right.max(2.0)).log_scale(), 0.0..top)?);
    } else {
        lines!(builder.build_cartesian_2d(least.min(0.0)..right.max(1e-9), 0.0..top)?);
    }
    root.present()?;
    Ok(())
}

/// Writes all figures of one simulation to a folder.
///
/// # Errors
/// The file system's error.
pub fn draw_all(folder: &Path, world: &World, report: &Report) -> Result<(), Box<dyn Error>> {
    let (samples, queues) = world.record();
    let at = |time: u64| time as f64 / (1000 * MICRO) as f64;
    let lines: Vec<Line> = queues
        .enumerate()
        .map(|(index, name)| Line {
            name: name.to_owned(),
            points: samples.iter().map(|sample| (at(sample.at), sample.queues[index] as f64 / 1e3)).collect(),
        })
        .collect();
    let title = &report.title;
    let figure = Figure { title, x: "time, ms", y: "queue, KB", log_x: false, lines: &lines };
    draw(&folder.join("queues.svg"), &figure)?;
    // The value of each recorded flow at a sample, in Gbit/s.
    let of_flows = |value: &dyn Fn(&Sample, usize) -> f64| -> Vec<Line> {
        let points = |index| samples.iter().map(|one| (at(one.at), value(one, index) / 1e9)).collect();
        let flows = report.flows.iter().enumerate();
        flows.map(|(index, flow)| Line { name: flow.name.clone(), points: points(index) }).collect()
    };
    let gap = samples.get(1).map_or(1, |second| second.at - samples[0].at).max(1);
    let lines = of_flows(&|one, flow| one.delivered[flow] as f64 * 8.0 * SECOND as f64 / gap as f64);
    let figure = Figure { title, x: "time, ms", y: "goodput, Gbit/s", log_x: false, lines: &lines };
    draw(&folder.join("goodput.svg"), &figure)?;
    let lines = of_flows(&|one, flow| one.rates[flow] as f64);
    let figure = Figure { title, x: "time, ms", y: "rate, Gbit/s", log_x: false, lines: &lines };
    draw(&folder.join("rates.svg"), &figure)?;
    let point = |value: fn(&crate::report::Summary) -> f64| {
        report.sizes.iter().map(|class| (class.up_to.min(30_000_000) as f64, value(&class.summary))).collect()
    };
    let lines = [
        Line { name: "median".into(), points: point(|summary| summary.slowdown_p50) },
        Line { name: "95 %".into(), points: point(|summary| summary.slowdown_p95) },
        Line { name: "99 %".into(), points: point(|summary| summary.slowdown_p99) },
    ];
    let figure = Figure { title, x: "flow size up to, bytes", y: "slowdown", log_x: true, lines: &lines };
    draw(&folder.join("slowdown.svg"), &figure)
}
