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
const COLORS: [&str; 10] =
    ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#ff7f0e", "#7f7f7f"];

/// Draws the cells, whose rows lie one after another.
pub fn svg(title: &str, cells: &[Cell]) -> String {
    let columns = cells.iter().take_while(|cell| cell.row == cells[0].row).count();
    let top = cells.iter().map(|cell| cell.hits.prefix_ratio()).fold(0.01, f64::max);
    let top = (top * 10.0).ceil() / 10.0;
    let x = |column: usize| LEFT + (WIDTH - LEFT - RIGHT) * (column as f64 + 0.5) / columns as f64;
    let y = |ratio: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - ratio / top);
    let mut svg = String::new();
    frame(&mut svg, title, top, y);
    for (column, cell) in cells.iter().take(columns).enumerate() {
        text(&mut svg, (x(column), HEIGHT - BOTTOM + 20.0), "middle", "#333", &cell.size.text);
    }
    let mut names = Vec::new();
    for (number, row) in cells.chunks(columns).enumerate() {
        let name = row[0].row.name();
        let color = if name == OPTIMUM { "#000000" } else { COLORS[number % COLORS.len()] };
        let points: String =
            row.iter().enumerate().map(|(at, c)| format!("{:.1},{:.1} ", x(at), y(c.hits.prefix_ratio()))).collect();
        let (width, dash) = match name {
            "default" => (3.5, ""),
            OPTIMUM => (2.0, " stroke-dasharray=\"6 4\""),
            _ => (1.5, ""),
        };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{dash}/>",
            points.trim_end()
        );
        let last = row.last().map_or(0.0, |cell| cell.hits.prefix_ratio());
        names.push((y(last), color, format!("{name} {:.1} %", 100.0 * last), y(last)));
    }
    spread(&mut names);
    for (at, color, name, from) in &names {
        let end = x(columns - 1);
        let _ = writeln!(
            svg,
            "<path d=\"M{end:.1} {from:.1} L{:.1} {at:.1}\" stroke=\"{color}\" stroke-width=\"0.7\"/>",
            WIDTH - RIGHT + 8.0
        );
        text(&mut svg, (WIDTH - RIGHT + 12.0, at + 4.0), "start", color, name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The frame: title, what the axes are, and a line for every tenth.
fn frame(svg: &mut String, title: &str, top: f64, y: impl Fn(f64) -> f64) {
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    let title = format!("Prefix hit ratio by size of the cache: {title}");
    text(svg, (LEFT, 28.0), "start", "#000", &title);
    text(
        svg,
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0),
        "middle",
        "#333",
        "size, in shares of the trace's distinct blocks",
    );
    for tenth in 0..=(top * 10.0).round() as u32 {
        let at = y(f64::from(tenth) / 10.0);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1} H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT);
        text(svg, (LEFT - 8.0, at + 4.0), "end", "#333", &format!("{} %", tenth * 10));
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, color: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{words}</text>");
}

/// Moves names apart that would lie over each other, from the top down and back up where they leave the picture.
fn spread<T, U, V>(names: &mut [(f64, T, U, V)]) {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    for at in 1..names.len() {
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
    use super::*;

    #[test]
    fn names_lie_apart_and_within() {
        let mut names: Vec<_> = [400.0, 400.0, 100.0, 509.0, 509.0].map(|y| (y, (), (), ())).into();
        spread(&mut names);
        assert_eq!(names.iter().map(|name| name.0).collect::<Vec<_>>(), [100.0, 400.0, 415.0, 495.0, 510.0]);
    }
}
