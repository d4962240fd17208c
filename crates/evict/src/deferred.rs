//! What has yet to be done.

/// How many wait at most.
const MOST: usize = 16;

/// The last hits of single slots, or the last that were given up, in their order. To do what each
/// asks for is to wait for memory several times; several that are done one after the other, what
/// they need read before, wait at the same time. So they wait until there are some,
/// or until anybody asks for what they change, or changes it in another way: nobody sees the
/// difference.
#[derive(Clone, Debug)]
pub(crate) struct Deferred<T> {
    items: [T; MOST],
    len: usize,
}

impl<T: Copy + Default> Deferred<T> {
    pub fn new() -> Self {
        Deferred { items: [T::default(); MOST], len: 0 }
    }

    /// Notes one. Answers whether no more can wait.
    pub fn push(&mut self, item: T) -> bool {
        self.items[self.len] = item;
        self.len += 1;
        self.len == MOST
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those that waited, and how many of these they are; now none waits.
    pub fn take(&mut self) -> ([T; MOST], usize) {
        (self.items, core::mem::take(&mut self.len))
    }
}
