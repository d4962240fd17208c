//! The tier's own memory for transfers, and the operations that wait for some of it.

use kvtier_mem::Arena;

use crate::encoding_memory::EncodingMemory;
use crate::load_buffers::BounceMemory;
use crate::wait_queue::WaitQueue;

/// Memory that an operation leases beside the caller's own. The arenas lock themselves.
#[derive(Debug)]
pub struct TransferMemory {
    /// Page pairs for [tail | footer], one for each operation.
    pub tails: Arena,
    bounce: Arena,
    /// All bytes of the bounce memory, used or not.
    pub bounce_bytes: usize,
    /// Operations that wait for a page pair or for bounce memory.
    pub queue: WaitQueue,
    /// For the encoded chunks of saves.
    pub encode: EncodingMemory,
    /// For the encoded chunks of loads.
    pub decode: EncodingMemory,
}

impl TransferMemory {
    /// `bounce` has `bounce_bytes`; encoded chunks may take `encode_bytes`.
    pub fn new(tails: Arena, bounce: Arena, bounce_bytes: usize, encode_bytes: usize) -> Self {
        TransferMemory {
            tails,
            bounce,
            bounce_bytes,
            queue: WaitQueue::default(),
            encode: EncodingMemory::new(encode_bytes / 2),
            decode: EncodingMemory::new(encode_bytes / 2),
        }
    }

    /// Drops all operations that wait for memory, and those that would wait from now on.
    pub fn close(&self) {
        self.queue.close();
        self.encode.queue.close();
        self.decode.queue.close();
    }

    /// The memory for payloads that are not aligned.
    pub fn bounce(&self) -> BounceMemory<'_> {
        BounceMemory { arena: &self.bounce, bytes: self.bounce_bytes }
    }
}
