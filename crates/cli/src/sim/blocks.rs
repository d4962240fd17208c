//! A trace as the simulator wants it: dense block numbers in one flat array.

use std::collections::HashMap;

use crate::trace::Trace;

/// The requests of a trace, their blocks numbered from 0 in the order they first came.
#[derive(Debug)]
pub struct Blocks {
    all: Vec<u32>,
    /// Where each request ends in `all`.
    ends: Vec<usize>,
    times_ms: Vec<u64>,
    distinct: usize,
    sessions: Vec<u32>,
}

impl Blocks {
    pub fn of(trace: &Trace) -> Self {
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut all = Vec::new();
        let mut ends = Vec::new();
        for request in &trace.requests {
            for id in request {
                let next = numbers.len() as u32;
                // Ids of traces are hashes. Small numbers make the tables of the simulation plain
                // vectors.
                all.push(*numbers.entry(*id).or_insert(next));
            }
            ends.push(all.len());
        }
        let mut blocks = Blocks {
            all,
            ends,
            times_ms: trace.times_ms.clone(),
            distinct: numbers.len(),
            sessions: Vec::new(),
        };
        blocks.sessions = trace.sessions.clone().unwrap_or_else(|| blocks.infer_sessions());
        blocks
    }

    pub fn requests(&self) -> usize {
        self.ends.len()
    }

    pub fn distinct(&self) -> usize {
        self.distinct
    }

    /// The blocks of a request, in the order of its chain.
    pub fn chain(&self, request: usize) -> &[u32] {
        let from = request.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[from..self.ends[request]]
    }

    /// When it came. Where the trace does not say, one millisecond after the one before.
    pub fn time_ms(&self, request: usize) -> u64 {
        match self.times_ms.last() {
            // A trace without times: one request a millisecond.
            Some(0) | None => request as u64,
            Some(_) => self.times_ms[request],
        }
    }

    /// The conversation that it belongs to.
    pub fn session(&self, request: usize) -> u32 {
        self.sessions[request]
    }

    /// A request goes on with the conversation whose request before used its deepest known block,
    /// if it repeats at least half of that request.
    fn infer_sessions(&self) -> Vec<u32> {
        let mut last_user: Vec<Option<usize>> = vec![None; self.distinct];
        let mut sessions: Vec<u32> = Vec::new();
        let mut next: u32 = 0;
        for request in 0..self.requests() {
            let chain = self.chain(request);
            let known =
                // Only a prefix that was seen before: an engine can continue nothing else.
                chain.iter().take_while(|block| last_user[**block as usize].is_some()).count();
            let before =
                known.checked_sub(1).and_then(|deepest| last_user[chain[deepest] as usize]);
            // It continues a request if it repeats at least half of it. A shared system prompt
            // alone is usually less.
            match before.filter(|before| 2 * known >= self.chain(*before).len()) {
                Some(before) => sessions.push(sessions[before]),
                None => {
                    sessions.push(next);
                    next += 1;
                }
            }
            // The latest request with a block is the one that a conversation goes on from.
            chain.iter().for_each(|block| last_user[*block as usize] = Some(request));
        }
        sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_recognized_by_repeated_blocks() {
        let requests =
            vec![vec![9, 1, 2], vec![9, 5, 6, 7], vec![9, 1, 2, 3], vec![9, 5, 6, 7, 8], vec![4]];
        let trace = Trace { times_ms: vec![0; 5], sessions: None, requests, block_tokens: 256 };
        let blocks = Blocks::of(&trace);
        assert_eq!(
            (0..5).map(|request| blocks.session(request)).collect::<Vec<_>>(),
            [0, 1, 0, 1, 2]
        );
        assert_eq!(
            (blocks.distinct(), blocks.chain(0), blocks.chain(4)),
            (9, &[0, 1, 2][..], &[8][..])
        );
        assert_eq!(blocks.time_ms(3), 3);
    }
}
