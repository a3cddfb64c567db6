//! The paper's figures beside ours, as an SVG.

use std::fmt::Write as _;

use crate::report::{Model, Run, against_fifo, spread};
use crate::settings::Settings;
use crate::simulation::Policy;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 70.0;
const LEFT: f64 = 56.0;
const GAP: f64 = 24.0;

/// A column: which policy, under which model, in which colour.
const COLUMNS: [(Policy, Model, &str); 8] = [
    (Policy::Longest, Model::Held, "#b0b0b0"),
    (Policy::Random, Model::Held, "#b0b0b0"),
    (Policy::FitGpp, Model::Held, "#1f6fb4"),
    (Policy::Mesh, Model::Held, "#2a9d5c"),
    (Policy::Longest, Model::Steady, "#b0b0b0"),
    (Policy::Random, Model::Steady, "#b0b0b0"),
    (Policy::FitGpp, Model::Steady, "#1f6fb4"),
    (Policy::Mesh, Model::Steady, "#2a9d5c"),
];

/// Draws all seeds as points, their median as a line, and the paper's figure as a dashed one.
pub(crate) fn draw(settings: &Settings, runs: &[Run]) -> String {
    let paper = &settings.paper;
    type Panel = (&'static str, f64, fn(&Run) -> f64);
    let panels: [Panel; 3] = [
        ("trial jobs: p95", paper.te_p95, |run| run.te_p95),
        ("best-effort jobs: median", paper.be_median, |run| run.be_median),
        ("best-effort jobs: p95", paper.be_p95, |run| run.be_p95),
    ];
    let (width, height) = (3.0 * (LEFT + WIDTH + GAP), TOP + HEIGHT + 90.0);
    let mut svg = String::new();
    let out = &mut svg;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Slowdown against FIFO, in percent: the paper (dashed) and {} seeds here</text>",
        settings.open.seeds.len()
    );
    for (at, (title, published, of)) in panels.into_iter().enumerate() {
        let x = LEFT + at as f64 * (LEFT + WIDTH + GAP);
        panel(out, x, title, published, |policy, model| against_fifo(runs, model, policy, of));
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\" fill=\"#555\">Left of each panel: load 2.0 held under FIFO, arrivals replayed. Right: Poisson arrivals at {} of that rate. One point a seed, the line is their median.</text>\n</svg>",
        height - 14.0,
        settings.open.steady_rate
    );
    svg
}

fn panel(
    out: &mut String,
    x: f64,
    title: &str,
    published: f64,
    values: impl Fn(Policy, Model) -> Vec<f64>,
) {
    let columns: Vec<Vec<f64>> =
        COLUMNS.iter().map(|(policy, model, _)| values(*policy, *model)).collect();
    let all = columns.iter().flatten().copied().chain([0.0, published]);
    let (low, high) =
        all.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let margin = (high - low).max(1.0) * 0.08;
    let (low, high) = (low - margin, high + margin);
    let y = |value: f64| TOP + HEIGHT * (high - value) / (high - low);
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{}\" font-weight=\"bold\">{title}</text>\n\
         <rect x=\"{x}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>",
        TOP - 14.0
    );
    let step = step((high - low) / 5.0);
    let mut tick = (low / step).ceil() * step;
    while tick <= high {
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" x2=\"{}\" y1=\"{2}\" y2=\"{2}\" stroke=\"#eee\"/>\n\
             <text x=\"{1}\" y=\"{3}\" text-anchor=\"end\" fill=\"#555\">{tick:.0}</text>",
            x + WIDTH,
            x - 6.0,
            y(tick),
            y(tick) + 4.0
        );
        tick += step;
    }
    let _ = writeln!(
        out,
        "<line x1=\"{x}\" x2=\"{0}\" y1=\"{1}\" y2=\"{1}\" stroke=\"#c0392b\" stroke-dasharray=\"6 4\"/>\n\
         <text x=\"{2}\" y=\"{3}\" fill=\"#c0392b\" text-anchor=\"end\">the paper: {published:+.1}</text>",
        x + WIDTH,
        y(published),
        x + WIDTH - 4.0,
        y(published) - 4.0
    );
    for (n, ((policy, _, colour), values)) in COLUMNS.iter().zip(&columns).enumerate() {
        let middle = x + WIDTH * (n as f64 + 0.5) / COLUMNS.len() as f64;
        let [_, median, _] = spread(values);
        for value in values {
            let _ = writeln!(
                out,
                "<circle cx=\"{middle:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\" fill-opacity=\"0.5\"/>",
                y(*value)
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>\n\
             <text x=\"{middle:.1}\" y=\"{3:.1}\" text-anchor=\"end\" transform=\"rotate(-45 {middle:.1} {3:.1})\">{4}</text>",
            middle - 12.0,
            middle + 12.0,
            y(median),
            TOP + HEIGHT + 16.0,
            policy.name()
        );
    }
}

/// A round number near `rough`.
fn step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough);
    round.unwrap_or(10.0) * power
}
