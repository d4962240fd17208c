//! Charts as SVG. The horizontal axis is logarithmic.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 300.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e5ea2"];

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
    /// Simulated or measured points are dots, a model is a line.
    pub is_model: bool,
}

/// How values are placed on the vertical axis.
#[derive(Clone, Copy, Debug)]
pub enum Axis {
    /// Logarithmic, in whole decades that contain all values. Values of 0 are left out.
    Decades,
    /// Evenly from one value to another, with a line each `step`.
    Linear { from: f64, to: f64, step: f64 },
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x: String,
    pub y: String,
    pub y_axis: Axis,
    pub series: Vec<Series>,
}

/// An axis for the values of a chart.
#[derive(Clone, Copy)]
enum Scale {
    /// From one power of ten to another.
    Decades {
        from: f64,
        to: f64,
    },
    Linear {
        from: f64,
        to: f64,
        step: f64,
    },
}

impl Scale {
    /// Whole decades that contain all values.
    fn decades(values: impl Iterator<Item = f64>) -> Self {
        let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
        let from = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
        let to = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
        Scale::Decades { from, to: if from < to { to } else { from + 1.0 } }
    }

    fn of(axis: Axis, values: impl Iterator<Item = f64>) -> Self {
        match axis {
            Axis::Decades => Scale::decades(values),
            Axis::Linear { from, to, step } => Scale::Linear { from, to, step },
        }
    }

    fn has(self, value: f64) -> bool {
        match self {
            Scale::Decades { .. } => value > 0.0,
            Scale::Linear { .. } => true,
        }
    }

    /// From 0 to 1.
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Decades { from, to } => (value.log10() - from) / (to - from),
            Scale::Linear { from, to, .. } => (value - from) / (to - from),
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Decades { from, to } => {
                (from as i32..=to as i32).map(|power| 10f64.powi(power)).collect()
            }
            Scale::Linear { from, to, step } => {
                (0..=((to - from) / step) as u32).map(|n| from + f64::from(n) * step).collect()
            }
        }
    }
}

impl Chart {
    /// Its SVG.
    pub fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (xs, ys) = (
            Scale::decades(points().map(|point| point.x)),
            Scale::of(self.y_axis, points().map(|point| point.y)),
        );
        let x = |value: f64| LEFT + xs.place(value) * (RIGHT - LEFT);
        let y = |value: f64| BOTTOM - ys.place(value) * (BOTTOM - TOP);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut text = |at_x: f64, at_y: f64, anchor: &str, what: &str| {
            let _ = writeln!(
                out,
                "<text x=\"{at_x:.0}\" y=\"{at_y:.0}\" text-anchor=\"{anchor}\">{what}</text>"
            );
        };
        text(LEFT, 20.0, "start", &self.title);
        text((LEFT + RIGHT) / 2.0, BOTTOM + 34.0, "middle", &self.x);
        text(LEFT, TOP - 6.0, "start", &self.y);
        xs.ticks()
            .into_iter()
            .for_each(|tick| text(x(tick), BOTTOM + 16.0, "middle", &label(tick)));
        ys.ticks()
            .into_iter()
            .for_each(|tick| text(LEFT - 6.0, y(tick) + 4.0, "end", &label(tick)));
        for tick in ys.ticks() {
            let at = y(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
            );
        }
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let has = series.points.iter().filter(|point| ys.has(point.y));
            let places = has.map(|point| Point { x: x(point.x), y: y(point.y) }).collect();
            draw_series(&mut out, places, series.is_model, colour);
            // Below the axis, where no curve is.
            let at = BOTTOM + 56.0 + 16.0 * number as f64;
            let name = &series.name;
            let _ = writeln!(
                out,
                "<text x=\"{:.0}\" y=\"{at:.0}\" fill=\"{colour}\">{name}</text>",
                LEFT + 10.0
            );
        }
        out + "</svg>\n"
    }
}

fn draw_series(out: &mut String, points: Vec<Point>, is_model: bool, colour: &str) {
    if is_model {
        let path: Vec<String> =
            points.iter().map(|Point { x, y }| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(out, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\"/>");
        return;
    }
    for Point { x, y } in points {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
    }
}

/// A power of ten in few characters.
fn label(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}
