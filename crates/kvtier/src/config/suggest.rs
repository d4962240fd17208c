//! Suggests the name that a misspelled one was meant to be.

/// The name nearest to `word`, if one is near enough.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(64).collect();
    let most = (word.chars().count() / 3).max(1);
    let by_distance = names.into_iter().map(|name| (strsim::osa_distance(&word, name), name));
    by_distance
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= most)
        .map(|(_, name)| name)
}

/// `; did you mean "x"?`, where a name is near.
pub(crate) fn hint<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map_or(String::new(), |name| format!("; did you mean {name:?}?"))
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
