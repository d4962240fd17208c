//! The registered memory of an engine, by address.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtier::{Lease, View};

use crate::borrow::Borrower;
use crate::region::Exported;

/// A part of a chunk, in the engine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub address: usize,
    pub bytes: usize,
}

/// Regions that do not overlap, each by the address of its first byte.
#[derive(Clone, Debug, Default)]
pub struct RegisteredMemory(BTreeMap<usize, Arc<Exported>>);

impl RegisteredMemory {
    /// Adds a region. One at the same address is replaced.
    pub fn add(&mut self, region: Arc<Exported>) {
        self.0.insert(region.address(), region);
    }

    /// The region with the lowest address.
    pub fn first(&self) -> Option<&Arc<Exported>> {
        self.0.values().next()
    }

    /// The bytes of a piece, to be saved.
    ///
    /// # Errors
    /// If no region holds all of them, or a load writes into them.
    pub fn view(&self, piece: Piece, borrower: &Borrower<'_>) -> Result<View, String> {
        let (region, offset) = self.find(piece)?;
        region.view(offset, piece.bytes, borrower)
    }

    /// The memory of a piece, to be loaded into.
    ///
    /// # Errors
    /// As for [`view`](Self::view).
    pub fn lease(&self, piece: Piece, borrower: &Borrower<'_>) -> Result<Lease, String> {
        let (region, offset) = self.find(piece)?;
        region.lease(offset, piece.bytes, borrower)
    }

    /// The region of a piece, and where the piece begins in it. The region checks the piece's end.
    fn find(&self, piece: Piece) -> Result<(&Arc<Exported>, usize), String> {
        let (base, region) =
            self.0.range(..=piece.address).next_back().ok_or_else(|| {
                format!("{} bytes lie outside of the registered memory", piece.bytes)
            })?;
        Ok((region, piece.address - base))
    }
}
