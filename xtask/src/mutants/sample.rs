//! Which mutants are tried.

use super::mutant::Mutant;

/// About `count` mutants, from each module in proportion to its mutants and at least one, by their
/// draws. Each with the number of its module.
pub fn choose(by_module: Vec<Vec<Mutant>>, count: usize, seed: u64) -> Vec<(usize, Mutant)> {
    let all: usize = by_module.iter().map(Vec::len).sum();
    let mut chosen = Vec::new();
    for (module, mut mutants) in by_module.into_iter().enumerate() {
        let share = (mutants.len() * count + all / 2).checked_div(all).unwrap_or(0).max(1);
        mutants.sort_by_key(|mutant| mutant.draw(seed));
        mutants.truncate(share);
        mutants.sort_by(|a, b| (&a.file, a.line_number).cmp(&(&b.file, b.line_number)));
        chosen.extend(mutants.into_iter().map(|mutant| (module, mutant)));
    }
    chosen
}

/// All mutants whose name contains one of `texts`.
pub fn named(by_module: Vec<Vec<Mutant>>, texts: &[String]) -> Vec<(usize, Mutant)> {
    let is_named = |mutant: &Mutant| texts.iter().any(|text| mutant.name.contains(text.as_str()));
    all(by_module).filter(|(_, mutant)| is_named(mutant)).collect()
}

/// All mutants, each with the number of its module.
pub fn all(by_module: Vec<Vec<Mutant>>) -> impl Iterator<Item = (usize, Mutant)> {
    let modules = by_module.into_iter().enumerate();
    modules.flat_map(|(module, mutants)| mutants.into_iter().map(move |mutant| (module, mutant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(file: &str, count: usize) -> Vec<Mutant> {
        let name = |line: usize| format!("{file}:{line}:1: change {line}");
        let mutant = |line| Mutant::parse(&name(line), |_, _| Some(String::new()));
        (1..=count).filter_map(mutant).collect()
    }

    #[test]
    fn modules_have_their_share_and_a_seed_repeats() {
        let all = || vec![mutants("a.rs", 300), mutants("b.rs", 100), mutants("c.rs", 1)];
        let chosen = choose(all(), 40, 1);
        let of = |module| chosen.iter().filter(|(of, _)| *of == module).count();
        assert_eq!((of(0), of(1), of(2)), (30, 10, 1));
        assert_eq!(choose(all(), 40, 1), chosen);
        assert_ne!(choose(all(), 40, 2), chosen);
    }

    #[test]
    fn mutants_are_found_by_a_part_of_their_name() {
        let found = named(vec![mutants("a.rs", 3), mutants("b.rs", 3)], &["b.rs:2".into()]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.file.as_str()), (1, "b.rs"));
    }
}
