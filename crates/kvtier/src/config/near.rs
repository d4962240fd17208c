/// The name nearest to `word`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(64).collect();
    let most = (word.len() / 3).max(1);
    let by_distance =
        names.into_iter().map(|name| (distance(&word, &name.chars().collect::<Vec<_>>()), name));
    by_distance
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= most)
        .map(|(_, name)| name)
}

/// `; did you mean "x"?`, where something is near.
pub(crate) fn hint<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map_or(String::new(), |name| format!("; did you mean {name:?}?"))
}

/// How many letters must be changed, added, dropped or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let above = &rows[i - 1];
            let mut best = (above[j - 1] + usize::from(a[i - 1] != b[j - 1]))
                .min(above[j] + 1)
                .min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_nonsense_none() {
        let names = ["chunk_size", "local_cpu", "local_disk", "gds_path"];
        assert_eq!(nearest("chunk_sise", names), Some("chunk_size"));
        assert_eq!(nearest("Local_Disc", names), Some("local_disk"));
        assert_eq!(nearest("hots", ["host", "file"]), Some("host"));
        assert_eq!(nearest("enable_xpyd", names), None);
        assert_eq!(hint("gdspath", names), "; did you mean \"gds_path\"?");
    }
}
