//! Conversations that begin, go on and end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::RangeInclusive;

use super::WorkloadKind;
use crate::trace::Random;

/// The parameters of a workload. Sizes are in blocks.
#[derive(Clone, Debug)]
pub struct WorkloadShape {
    pub sessions_per_minute: f64,
    /// Mean requests of a conversation.
    pub turns: f64,
    /// Median pause before a person's request.
    pub think_seconds: f64,
    /// Mean pause before a tool's answer is sent on.
    pub tool_seconds: f64,
    /// How many of a hundred requests are a person's; the others carry a tool's answer.
    pub person_percent: u64,
    pub prompts: usize,
    pub prompt_blocks: RangeInclusive<u64>,
    /// What a request adds.
    pub turn_blocks: RangeInclusive<u64>,
    /// What the model's answer adds.
    pub answer_blocks: RangeInclusive<u64>,
    pub documents: usize,
    pub document_blocks: RangeInclusive<u64>,
    /// Documents in a conversation's first request.
    pub documents_each: RangeInclusive<u64>,
}

impl WorkloadShape {
    /// The defaults of a kind.
    pub fn of(kind: WorkloadKind) -> Self {
        let chat = WorkloadShape {
            sessions_per_minute: 60.0,
            turns: 2.5,
            think_seconds: 60.0,
            tool_seconds: 0.0,
            person_percent: 100,
            prompts: 16,
            prompt_blocks: 1..=8,
            turn_blocks: 1..=12,
            answer_blocks: 1..=3,
            documents: 0,
            document_blocks: 1..=1,
            documents_each: 0..=0,
        };
        match kind {
            WorkloadKind::Chat => chat,
            WorkloadKind::Agents => WorkloadShape {
                sessions_per_minute: 4.0,
                turns: 40.0,
                think_seconds: 240.0,
                tool_seconds: 6.0,
                person_percent: 8,
                prompts: 4,
                prompt_blocks: 40..=80,
                turn_blocks: 1..=16,
                answer_blocks: 1..=4,
                ..chat
            },
            WorkloadKind::Rag => WorkloadShape {
                turns: 1.3,
                prompts: 4,
                turn_blocks: 1..=2,
                answer_blocks: 1..=2,
                documents: 500,
                document_blocks: 2..=16,
                documents_each: 1..=4,
                ..chat
            },
        }
    }
}

/// One request of a generated trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    pub time_ms: u64,
    pub session: u32,
    pub blocks: Vec<u64>,
    /// How many blocks the model adds.
    pub answer: usize,
}

/// Requests without end, in the order of their times.
#[derive(Debug)]
pub struct Workload {
    shape: WorkloadShape,
    random: Random,
    /// Sizes of prompts, and of documents.
    prompts: Vec<u64>,
    documents: Vec<u64>,
    /// Ids of blocks that several conversations share, by the block before and what they are part
    /// of.
    shared: HashMap<(u64, u64), u64>,
    next_id: u64,
    /// Chains of conversations that go on.
    open: HashMap<u32, Vec<u64>>,
    /// When which conversation's next request comes.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    next_session: u32,
}

impl Workload {
    pub fn new(shape: WorkloadShape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut sizes = |n: usize, blocks: &RangeInclusive<u64>| {
            (0..n).map(|_| between(&mut random, blocks)).collect()
        };
        let prompts = sizes(shape.prompts, &shape.prompt_blocks);
        let documents = sizes(shape.documents, &shape.document_blocks);
        let due = BinaryHeap::from([Reverse((0, 0))]);
        let shared = HashMap::new();
        let open = HashMap::new();
        Workload {
            shape,
            random,
            prompts,
            documents,
            shared,
            next_id: 0,
            open,
            due,
            next_session: 0,
        }
    }

    /// A number below `n`, each in proportion to 1/(number + 1).
    fn popular(&mut self, n: usize) -> usize {
        // The inverse of the continuous distribution: close, and free of tables.
        (((n as f64 + 1.0).powf(self.random.unit())) as usize).clamp(1, n) - 1
    }

    fn fresh(&mut self, chain: &mut Vec<u64>, blocks: u64) {
        // Text that only this conversation has: ids that no other chain contains.
        chain.extend(self.next_id..self.next_id + blocks);
        self.next_id += blocks;
    }

    /// Adds blocks of a text that others send too: equal after equal chains.
    fn share(&mut self, chain: &mut Vec<u64>, text: u64, blocks: u64) {
        for part in 0..blocks {
            // A block is named by what stands before it too, as engines hash prefixes: the same
            // document behind another prompt is another block.
            let place = (chain.last().map_or(u64::MAX, |last| *last), text << 32 | part);
            let id = *self.shared.entry(place).or_insert(self.next_id);
            self.next_id = self.next_id.max(id + 1);
            chain.push(id);
        }
    }

    /// The chain with which a conversation begins.
    fn begin(&mut self) -> Vec<u64> {
        let mut chain = Vec::new();
        let prompt = self.popular(self.prompts.len());
        self.share(&mut chain, prompt as u64, self.prompts[prompt]);
        if !self.documents.is_empty() {
            for _ in 0..between(&mut self.random, &self.shape.documents_each) {
                let document = self.popular(self.documents.len());
                self.share(
                    &mut chain,
                    (self.prompts.len() + document) as u64,
                    self.documents[document],
                );
            }
        }
        chain
    }

    /// How long until the next request of a conversation, in milliseconds.
    fn pause(&mut self) -> u64 {
        let person = self.random.below(100) < self.shape.person_percent;
        let seconds = match person {
            // People pause by a log-normal distribution, with a long tail. Tools answer by an
            // exponential one.
            true => self.shape.think_seconds * self.random.normal().exp(),
            false => self.random.exponential(self.shape.tool_seconds),
        };
        // At least a millisecond, so that a session's requests keep their order.
        (seconds * 1000.0) as u64 + 1
    }
}

impl Iterator for Workload {
    type Item = TraceRequest;

    fn next(&mut self) -> Option<TraceRequest> {
        // The heap has one entry for each open session and one for the next new one.
        let Reverse((time_ms, session)) = self.due.pop()?;
        // The first turn of a session also schedules the next session, so arrivals are a Poisson
        // process.
        if session == self.next_session {
            self.next_session += 1;
            let later = self.random.exponential(60_000.0 / self.shape.sessions_per_minute) as u64;
            self.due.push(Reverse((time_ms + later, self.next_session)));
            let chain = self.begin();
            self.open.insert(session, chain);
        }
        let mut blocks = self.open.remove(&session)?;
        let added = between(&mut self.random, &self.shape.turn_blocks);
        self.fresh(&mut blocks, added);
        let answer = between(&mut self.random, &self.shape.answer_blocks);
        let request =
            TraceRequest { time_ms, session, blocks: blocks.clone(), answer: answer as usize };
        // Each turn is the last with the same probability, so the number of turns has the mean that
        // was asked for.
        if self.random.unit() > 1.0 / self.shape.turns.max(1.0) {
            self.fresh(&mut blocks, answer);
            self.open.insert(session, blocks);
            let pause = self.pause();
            self.due.push(Reverse((time_ms + pause, session)));
        }
        Some(request)
    }
}

fn between(random: &mut Random, limits: &RangeInclusive<u64>) -> u64 {
    limits.start() + random.below(limits.end() - limits.start() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(kind: WorkloadKind, seed: u64) -> Vec<TraceRequest> {
        Workload::new(WorkloadShape::of(kind), seed).take(3000).collect()
    }

    #[test]
    fn a_block_has_one_parent_and_time_goes_on() {
        for kind in [WorkloadKind::Chat, WorkloadKind::Agents, WorkloadKind::Rag] {
            let requests = requests(kind, 7);
            assert_eq!(requests, self::requests(kind, 7));
            assert_ne!(requests, self::requests(kind, 8));
            assert!(requests.is_sorted_by_key(|request| request.time_ms));
            let mut parents = HashMap::new();
            for request in &requests {
                let before = [u64::MAX].into_iter().chain(request.blocks.iter().copied());
                for (parent, block) in before.zip(&request.blocks) {
                    assert_eq!(*parents.entry(*block).or_insert(parent), parent);
                }
            }
        }
    }

    #[test]
    fn conversations_are_as_long_as_asked() {
        for (kind, turns) in [(WorkloadKind::Chat, 2.5), (WorkloadKind::Rag, 1.3)] {
            let requests = requests(kind, 1);
            let sessions = requests.iter().map(|request| request.session).max().unwrap() + 1;
            let mean = requests.len() as f64 / f64::from(sessions);
            assert!((mean / turns - 1.0).abs() < 0.15, "{kind:?}: {mean}");
        }
    }
}
