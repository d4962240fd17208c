use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::Cell;

/// What one turn gave for one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `put`, `put churning`, `put recycled`, `put summed`, `get` or `sum`.
    pub op: String,
    /// What the contender did in particular: its block size, its engine. A column of
    /// its own in the results.
    pub how: String,
    pub mb_per_s: f64,
    pub cpu_s_per_gb: f64,
    /// Latency of a chunk, where the contender reports it.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// All samples: by cell, operation, contender and how it did it.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<(Cell, String, String, String), Vec<Sample>>);

impl Samples {
    pub fn add(&mut self, cell: &Cell, who: &str, samples: Vec<Sample>) {
        for sample in samples {
            let key = (*cell, sample.op.clone(), who.to_owned(), sample.how.clone());
            self.0.entry(key).or_default().push(sample);
        }
    }

    /// The median of each number of a contender's operation; of the fastest way, where it tried
    /// several.
    pub fn best(&self, cell: &Cell, who: &str, op: &str) -> Option<Sample> {
        let ways = self.0.iter().filter(|((c, o, w, _), _)| c == cell && o == op && w == who);
        ways.map(|(_, turns)| median_of(turns)).max_by(|a, b| a.mb_per_s.total_cmp(&b.mb_per_s))
    }

    /// Who has samples, in order of names.
    pub fn contenders(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().map(|(_, _, who, _)| who.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    pub fn json(&self) -> Value {
        let row = |((cell, op, who, how), turns): (
            &(Cell, String, String, String),
            &Vec<Sample>,
        )| {
            let each = |f: &dyn Fn(&Sample) -> Option<f64>| turns.iter().map(f).collect::<Vec<_>>();
            json!({
                "size": cell.size, "inflight": cell.inflight, "op": op, "who": who, "how": how,
                "mb_per_s": each(&|s| Some(s.mb_per_s)), "cpu_s_per_gb": each(&|s| Some(s.cpu_s_per_gb)),
                "p50_ms": each(&|s| s.p50_ms), "p99_ms": each(&|s| s.p99_ms),
            })
        };
        self.0.iter().map(row).collect()
    }
}

fn median_of(turns: &[Sample]) -> Sample {
    let of = |f: &dyn Fn(&Sample) -> Option<f64>| {
        let mut values: Vec<f64> = turns.iter().filter_map(f).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Sample {
        op: turns[0].op.clone(),
        how: turns[0].how.clone(),
        mb_per_s: of(&|s| Some(s.mb_per_s)).unwrap_or_default(),
        cpu_s_per_gb: of(&|s| Some(s.cpu_s_per_gb)).unwrap_or_default(),
        p50_ms: of(&|s| s.p50_ms),
        p99_ms: of(&|s| s.p99_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(how: &str, mb_per_s: f64) -> Sample {
        Sample {
            op: "put".into(),
            how: how.into(),
            mb_per_s,
            cpu_s_per_gb: 1.0,
            p50_ms: None,
            p99_ms: None,
        }
    }

    #[test]
    fn the_best_way_is_the_one_with_the_best_median() {
        let cell = Cell { size: 4096, inflight: 1, chunks: 1 };
        let mut samples = Samples::default();
        for (how, mb_per_s) in
            [("a", 1.0), ("a", 100.0), ("a", 2.0), ("b", 3.0), ("b", 4.0), ("b", 5.0)]
        {
            samples.add(&cell, "x", vec![sample(how, mb_per_s)]);
        }
        let best = samples.best(&cell, "x", "put").unwrap();
        assert_eq!((best.how.as_str(), best.mb_per_s), ("b", 4.0));
        assert_eq!(samples.best(&cell, "x", "get"), None);
        assert_eq!(samples.contenders(), ["x"]);
    }
}
