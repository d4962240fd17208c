//! Two-level segregated fit over page numbers: runs of free pages in lists by size, two bitmaps
//! that find a list with a fit at once.

/// Steps between one power of two and the next.
const STEPS_LOG2: u32 = 3;
const STEPS: u32 = 1 << STEPS_LOG2;
/// Lists: sizes below `STEPS` have one each, then `STEPS` for each power of two up to 2^31.
const LISTS: usize = ((32 - STEPS_LOG2) * STEPS + STEPS) as usize;
const NONE: u32 = u32::MAX;

/// A run of pages, free or taken.
#[derive(Clone, Copy, Debug)]
struct PageRun {
    page: u32,
    pages: u32,
    /// The runs before and after it in memory.
    left: u32,
    right: u32,
    /// The runs before and after it in its list, while it is free.
    prev: u32,
    next: u32,
    free: bool,
}

/// The free and taken runs of an arena.
#[derive(Debug)]
pub(crate) struct Tlsf {
    runs: Vec<PageRun>,
    /// Numbers in `runs` that are not in use.
    spare: Vec<u32>,
    heads: Box<[u32]>,
    /// Which lists are not empty, in words of 32; and which words are not 0.
    words: [u32; LISTS.div_ceil(32)],
    word_map: u32,
    pages: u32,
    free_pages: u32,
}

// Why a call takes few steps, and why no page is lost or leased twice:
//
// - The runs form a list in the order of memory (`left`, `right`) that covers all pages without
//   gaps: `take` cuts a run in two, `give` joins adjacent ones, and nothing else changes it.
// - A free run is in exactly one list by size, a taken one in none. `list` and `unlist` are the
//   only places that change `free`, the lists, the bitmaps and `free_pages`, so these always agree.
// - Two free runs are never adjacent, since `give` joins both sides at once. So the largest free
//   run is as long as it can be, and fragmentation does not grow with time alone.
// - A fit is found by two bitmap searches. Only where no list is sure to fit is one list searched:
//   its runs differ in size by at most an eighth.
//
// The handle of a taken run is its index in `runs`. Indices are reused only after `join` has taken
// the run out of the memory order, so a handle names the same run from `take` to `give`.
impl Tlsf {
    /// `pages` pages, all free.
    pub fn new(pages: u32) -> Self {
        let words = [0; LISTS.div_ceil(32)];
        let heads = vec![NONE; LISTS].into_boxed_slice();
        let free_pages = 0;
        let mut tlsf = Tlsf {
            runs: Vec::new(),
            spare: Vec::new(),
            heads,
            words,
            word_map: 0,
            pages,
            free_pages,
        };
        if pages > 0 {
            let run = tlsf.add(PageRun {
                page: 0,
                pages,
                left: NONE,
                right: NONE,
                prev: NONE,
                next: NONE,
                free: false,
            });
            tlsf.list(run);
        }
        tlsf
    }

    /// All pages, free or not.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Takes `pages` (at least 1) pages in a row: (first page, number to free).
    pub fn take(&mut self, pages: u32) -> Option<(u32, u32)> {
        let run = self.find(pages)?;
        self.unlist(run);
        let PageRun { page, pages: all, right, .. } = self.runs[run as usize];
        // The front is leased and the rest stays free. The rest takes over the link to the right,
        // so the memory order stays whole.
        if all > pages {
            let rest = PageRun {
                page: page + pages,
                pages: all - pages,
                left: run,
                right,
                prev: NONE,
                next: NONE,
                free: false,
            };
            let rest = self.add(rest);
            if right != NONE {
                self.runs[right as usize].left = rest;
            }
            let taken = &mut self.runs[run as usize];
            (taken.pages, taken.right) = (pages, rest);
            self.list(rest);
        }
        Some((page, run))
    }

    /// Gives a run back, and joins it with adjacent free runs.
    pub fn give(&mut self, run: u32) {
        let PageRun { left, right, .. } = self.runs[run as usize];
        let mut run = run;
        // To the right first: the number of this run then survives, and the join with the left one
        // only has to know the final length.
        if right != NONE && self.runs[right as usize].free {
            self.unlist(right);
            self.join(run, right);
        }
        if left != NONE && self.runs[left as usize].free {
            self.unlist(left);
            self.join(left, run);
            run = left;
        }
        self.list(run);
    }

    /// How much is free, and the largest run of it.
    pub fn free(&self) -> super::Free {
        let largest = self
            .last_list()
            .map_or(0, |list| self.in_list(list).map(|run| run.1).max().unwrap_or(0));
        super::Free { pages: self.free_pages, largest }
    }

    /// A free run of at least `pages`: any of the first list whose runs all are, or else one that
    /// is by chance.
    fn find(&self, pages: u32) -> Option<u32> {
        if let Some(list) = self.first_list_from(list_of_at_least(pages)) {
            return Some(self.heads[list]);
        }
        self.in_list(list_of(pages)).find(|(_, n)| *n >= pages).map(|(run, _)| run)
    }

    fn first_list_from(&self, list: usize) -> Option<usize> {
        if list >= LISTS {
            return None;
        }
        let word = list / 32;
        let bit = list as u32 % 32;
        let here = self.words[word] & (u32::MAX << bit);
        if here != 0 {
            return Some(word * 32 + here.trailing_zeros() as usize);
        }
        // Higher lists hold longer runs, so the first set bit is the best fit among the lists that
        // surely fit.
        let later = self.word_map & (u32::MAX << word) & !(1 << word);
        (later != 0)
            .then(|| later.trailing_zeros() as usize)
            .map(|word| word * 32 + self.words[word].trailing_zeros() as usize)
    }

    fn last_list(&self) -> Option<usize> {
        let word = self.word_map.checked_ilog2()? as usize;
        Some(word * 32 + self.words[word].ilog2() as usize)
    }

    /// The runs of a list with their sizes.
    fn in_list(&self, list: usize) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = |run: u32| (run != NONE).then_some(run);
        std::iter::successors(known(self.heads[list]), move |run| {
            known(self.runs[*run as usize].next)
        })
        .map(|run| (run, self.runs[run as usize].pages))
    }

    fn list(&mut self, run: u32) {
        let pages = self.runs[run as usize].pages;
        let list = list_of(pages);
        let next = std::mem::replace(&mut self.heads[list], run);
        let this = &mut self.runs[run as usize];
        (this.free, this.prev, this.next) = (true, NONE, next);
        if next != NONE {
            self.runs[next as usize].prev = run;
        }
        self.words[list / 32] |= 1 << (list % 32);
        self.word_map |= 1 << (list / 32);
        self.free_pages += pages;
    }

    fn unlist(&mut self, run: u32) {
        let PageRun { pages, prev, next, .. } = self.runs[run as usize];
        self.runs[run as usize].free = false;
        let list = list_of(pages);
        match prev {
            NONE => self.heads[list] = next,
            prev => self.runs[prev as usize].next = next,
        }
        if next != NONE {
            self.runs[next as usize].prev = prev;
        }
        if self.heads[list] == NONE {
            self.words[list / 32] &= !(1 << (list % 32));
            if self.words[list / 32] == 0 {
                self.word_map &= !(1 << (list / 32));
            }
        }
        self.free_pages -= pages;
    }

    /// Makes `right`, the run behind `left`, a part of it.
    fn join(&mut self, left: u32, right: u32) {
        let PageRun { pages, right: beyond, .. } = self.runs[right as usize];
        let joined = &mut self.runs[left as usize];
        joined.pages += pages;
        joined.right = beyond;
        if beyond != NONE {
            self.runs[beyond as usize].left = left;
        }
        self.spare.push(right);
    }

    fn add(&mut self, run: PageRun) -> u32 {
        match self.spare.pop() {
            Some(spare) => {
                self.runs[spare as usize] = run;
                spare
            }
            None => {
                self.runs.push(run);
                self.runs.len() as u32 - 1
            }
        }
    }
}

/// The list that runs of `pages` (at least 1) are in.
fn list_of(pages: u32) -> usize {
    if pages < STEPS {
        return pages as usize;
    }
    let log = pages.ilog2();
    let step = (pages >> (log - STEPS_LOG2)) & (STEPS - 1);
    ((log - STEPS_LOG2 + 1) * STEPS + step) as usize
}

/// The first list in which every run has at least `pages`.
fn list_of_at_least(pages: u32) -> usize {
    let list = list_of(pages);
    // Its smallest run has these many pages; if that is not enough, the next list's has.
    let smallest = if pages < STEPS {
        pages
    } else {
        pages >> (pages.ilog2() - STEPS_LOG2) << (pages.ilog2() - STEPS_LOG2)
    };
    if smallest >= pages { list } else { list + 1 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_in_the_order_of_sizes() {
        let sizes = (0..32)
            .flat_map(|log| [(1u32 << log) - 1, 1 << log, (1 << log) + 1])
            .chain([u32::MAX])
            .filter(|n| *n > 0);
        for (a, b) in sizes.clone().zip(sizes.skip(1)) {
            assert!(list_of(a.min(b)) <= list_of(a.max(b)), "{a} {b}");
            assert!(list_of(b) < LISTS && list_of_at_least(b) <= LISTS);
        }
    }

    proptest! {
        /// Against a map of what is taken: no overlap, no leak, all joined in the end, and what is said to be the largest can be taken.
        #[test]
        fn it_does_what_a_map_does(ops in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 1..300)) {
            let mut tlsf = Tlsf::new(257);
            let mut taken = BTreeMap::new();
            let all = 257;
            for (take, pages, which) in ops {
                if take {
                    let free: u32 = all - taken.values().map(|(n, _)| n).sum::<u32>();
                    prop_assert_eq!(tlsf.free().pages, free);
                    let largest = tlsf.free().largest;
                    match tlsf.take(pages) {
                        None => prop_assert!(largest < pages),
                        Some((page, run)) => {
                            prop_assert!(largest >= pages);
                            let before = taken.range(..page).next_back().map_or(0, |(page, (n, _))| page + n);
                            let after = taken.range(page..).next().map_or(all, |(page, _)| *page);
                            prop_assert!(before <= page && page + pages <= after, "overlap");
                            taken.insert(page, (pages, run));
                        }
                    }
                } else if !taken.is_empty() {
                    let page = *which.get(&taken.keys().copied().collect::<Vec<_>>());
                    let (_, run) = taken.remove(&page).unwrap();
                    tlsf.give(run);
                }
            }
            for (_, run) in taken.into_values() {
                tlsf.give(run);
            }
            prop_assert_eq!(tlsf.free(), crate::alloc::Free { pages: all, largest: all });
            prop_assert_eq!(tlsf.runs.len() - tlsf.spare.len(), 1);
        }
    }
}
