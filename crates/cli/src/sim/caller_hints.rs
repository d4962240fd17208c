//! Hints of callers that predict the future more or less well.

use kvtier::evict::EvictionHint;

use super::blocks::Blocks;
use crate::trace::Random;

/// Which requests come with a hint of when their conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Given {
    /// None.
    None,
    /// All: the true time × lognormal(σ = 1), or that the conversation is over.
    All,
    /// A random half of them.
    Half,
    /// All, each that of another request.
    Wrong,
}

/// The hint of each request.
#[derive(Debug)]
pub struct Hints(Vec<Option<EvictionHint>>);

impl Hints {
    pub fn new(blocks: &Blocks, given: Given, seed: u64) -> Self {
        if given == Given::None {
            return Hints(Vec::new());
        }
        let mut random = Random::new(seed);
        let mut returns: Vec<Option<u64>> = vec![None; blocks.requests()];
        let mut next = std::collections::HashMap::new();
        // From the end, so that the map has the next request of each session.
        for request in (0..blocks.requests()).rev() {
            let now = blocks.time_ms(request);
            returns[request] =
                next.insert(blocks.session(request), now).map(|then: u64| then.saturating_sub(now));
        }
        if given == Given::Wrong {
            for last in (1..returns.len()).rev() {
                // A shuffle: wrong hints with the right distribution.
                returns.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        let mut hint = |ms: &Option<u64>| {
            // Engines can only guess when a session returns. The noise is log-normal, a factor of e
            // in either direction.
            let noise = random.normal().exp();
            let said = given != Given::Half || random.below(2) == 0;
            let hint = match ms {
                Some(ms) => {
                    EvictionHint::new().with_expected_return_ms((*ms as f64 * noise) as u64)
                }
                None => EvictionHint::new().with_session_ended(),
            };
            said.then_some(hint)
        };
        Hints(returns.iter().map(&mut hint).collect())
    }

    pub fn of(&self, request: usize) -> Option<EvictionHint> {
        self.0.get(request).copied().flatten()
    }
}
