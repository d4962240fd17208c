//! Hit ratio by size as a picture: one line a policy, named where it ends.

use std::fmt::Write;

use super::{Cell, OPTIMUM};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// The least distance between two names.
const LINE: f64 = 15.0;
/// Numbers at the foot of the picture stand no closer than this.
const TICK: f64 = 36.0;
/// One for each policy that there is: no two lines look alike.
const COLORS: [&str; 14] = [
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22",
    "#ff7f0e", "#7f7f7f", "#00429d", "#93003a", "#5b8c00", "#b07aff",
];

/// Where sizes stand from left to right: by their logarithm, since a cache of twice the size is as
/// far from one as that from its half.
struct Axis {
    least: f64,
    most: f64,
}

impl Axis {
    fn of(cells: &[Cell]) -> Self {
        let logs = || cells.iter().map(|cell| (cell.size.blocks as f64).ln());
        Axis { least: logs().fold(f64::INFINITY, f64::min), most: logs().fold(0.0, f64::max) }
    }

    fn x(&self, blocks: usize) -> f64 {
        let width = WIDTH - LEFT - RIGHT;
        let margin = 30.0;
        if self.most <= self.least {
            return LEFT + width / 2.0;
        }
        let share = ((blocks as f64).ln() - self.least) / (self.most - self.least);
        LEFT + margin + (width - 2.0 * margin) * share
    }
}

/// Draws the cells, whose rows lie one after another.
pub fn svg(title: &str, cells: &[Cell]) -> String {
    // Cells are in the order of rows, and all rows have the same sizes.
    let columns = cells.iter().take_while(|cell| cell.row == cells[0].row).count();
    let top = cells.iter().map(|cell| cell.hits.prefix_ratio()).fold(0.01, f64::max);
    // Up to the next tenth, where there is a line of the grid.
    let top = (top * 10.0).ceil() / 10.0;
    let axis = Axis::of(cells);
    let y = |ratio: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - ratio / top);
    let mut svg = String::new();
    frame(&mut svg, title, top, y);
    ticks(&mut svg, &axis, &cells[..columns]);
    let mut names = Vec::new();
    for (number, row) in cells.chunks(columns).enumerate() {
        let name = row[0].row.name();
        let color = if name == OPTIMUM { "#000000" } else { COLORS[number % COLORS.len()] };
        let mut points: Vec<(f64, f64)> = row
            .iter()
            .map(|cell| (axis.x(cell.size.blocks), y(cell.hits.prefix_ratio())))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        curve(&mut svg, name, color, &points);
        let largest = row.iter().max_by_key(|cell| cell.size.blocks);
        let last = largest.map_or(0.0, |cell| cell.hits.prefix_ratio());
        // Twice: the first is moved to make place, the last remains the end of the curve.
        names.push((y(last), color, format!("{name} {:.1} %", 100.0 * last), y(last)));
    }
    spread(&mut names);
    let end = cells.iter().map(|cell| axis.x(cell.size.blocks)).fold(LEFT, f64::max);
    for (at, color, name, from) in &names {
        let _ = writeln!(
            svg,
            "<path d=\"M{end:.1} {from:.1} L{:.1} {at:.1}\" stroke=\"{color}\" stroke-width=\"0.7\"/>",
            WIDTH - RIGHT + 8.0
        );
        text(&mut svg, Point { x: WIDTH - RIGHT + 12.0, y: at + 4.0 }, "start", color, name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A policy's line, and a dot at each size: of one size there is no line.
fn curve(svg: &mut String, name: &str, color: &str, points: &[(f64, f64)]) {
    let (width, dash) = match name {
        "default" => (3.5, ""),
        OPTIMUM => (2.0, " stroke-dasharray=\"6 4\""),
        _ => (1.5, ""),
    };
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let line = line.join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{dash}/>"
    );
    for (x, y) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\" fill=\"{color}\"/>",
            width + 1.0
        );
    }
}

/// The sizes at the foot, as far as there is a place for each.
fn ticks(svg: &mut String, axis: &Axis, row: &[Cell]) {
    let mut sizes: Vec<_> =
        row.iter().map(|cell| (axis.x(cell.size.blocks), cell.size.text.as_str())).collect();
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::NEG_INFINITY;
    for (x, size) in sizes {
        // A label that would overlap the one before is left out; its points are drawn all the same.
        if x >= free {
            text(svg, Point { x, y: HEIGHT - BOTTOM + 20.0 }, "middle", "#333", size);
            free = x + TICK;
        }
    }
}

/// The frame: title, what the axes are, and a line for every tenth.
fn frame(svg: &mut String, title: &str, top: f64, y: impl Fn(f64) -> f64) {
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    let title = format!("Prefix hit ratio by size of the cache: {title}");
    text(svg, Point { x: LEFT, y: 28.0 }, "start", "#000", &title);
    text(
        svg,
        Point { x: (LEFT + WIDTH - RIGHT) / 2.0, y: HEIGHT - 14.0 },
        "middle",
        "#333",
        "size: shares of the trace's distinct blocks, or blocks; logarithmic",
    );
    for tenth in 0..=(top * 10.0).round() as u32 {
        let at = y(f64::from(tenth) / 10.0);
        let _ =
            writeln!(svg, "<path d=\"M{LEFT} {at:.1} H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT);
        text(
            svg,
            Point { x: LEFT - 8.0, y: at + 4.0 },
            "end",
            "#333",
            &format!("{} %", tenth * 10),
        );
    }
}

/// Where a text stands.
struct Point {
    x: f64,
    y: f64,
}

fn text(svg: &mut String, at: Point, anchor: &str, color: &str, words: &str) {
    let Point { x, y } = at;
    // The name of a trace is the user's and may contain markup.
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{words}</text>"
    );
}

/// Moves names apart that would lie over each other, from the top down and back up where they leave
/// the picture.
fn spread<T, U, V>(names: &mut [(f64, T, U, V)]) {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    for at in 1..names.len() {
        // Downwards first. What then leaves the picture is pushed up again from below.
        names[at].0 = names[at].0.max(names[at - 1].0 + LINE);
    }
    let mut floor = HEIGHT - 10.0;
    for name in names.iter_mut().rev() {
        name.0 = name.0.min(floor);
        floor = name.0 - LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::Hits;
    use super::super::{CacheSize, SimRow};
    use super::*;

    fn cell(kind: kvtier::evict::PolicyKind, text: &str, blocks: usize) -> Cell {
        let row = SimRow::Policy { kind, chain_known: true };
        Cell {
            row,
            size: CacheSize { text: text.into(), blocks },
            hits: Hits { asked: 100, prefix: 40, blocks: 50 },
        }
    }

    #[test]
    fn every_policy_has_a_color_of_its_own() {
        let mut colors: Vec<&str> = COLORS.to_vec();
        colors.sort_unstable();
        colors.dedup();
        assert_eq!(colors.len(), COLORS.len());
        // All kinds and the default without chains; the optimum is black.
        assert!(COLORS.len() > kvtier::evict::PolicyKind::ALL.len());
    }

    #[test]
    fn sizes_stand_where_their_logarithm_is_whatever_their_order() {
        let kind = kvtier::evict::PolicyKind::Default;
        let cells = [("10%", 1000), ("1%", 100), ("100%", 10_000)]
            .map(|(text, blocks)| cell(kind, text, blocks));
        let axis = Axis::of(&cells);
        let [ten, one, all] = cells.each_ref().map(|cell| axis.x(cell.size.blocks));
        assert!((ten - (one + all) / 2.0).abs() < 0.01 && one < ten, "{one} {ten} {all}");
        let drawn = svg("t", &cells);
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<polyline").count()), (3, 1));
        assert!(
            drawn.contains(&format!("<polyline points=\"{one:.1},")),
            "the line goes from the left to the right"
        );
    }

    #[test]
    fn one_size_is_drawn_too() {
        let drawn = svg("t", &[cell(kvtier::evict::PolicyKind::Default, "5%", 7)]);
        assert!(
            drawn.contains("<circle") && !drawn.contains("NaN") && !drawn.contains("inf"),
            "{drawn}"
        );
    }

    #[test]
    fn names_lie_apart_and_within() {
        let mut names: Vec<_> = [400.0, 400.0, 100.0, 509.0, 509.0].map(|y| (y, (), (), ())).into();
        spread(&mut names);
        assert_eq!(
            names.iter().map(|name| name.0).collect::<Vec<_>>(),
            [100.0, 400.0, 415.0, 495.0, 510.0]
        );
    }
}
