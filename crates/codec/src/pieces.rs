//! Memory in several pieces: read and written as one sequence.

/// The bytes of all pieces.
pub(crate) fn total_len(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// The bytes of all pieces.
pub(crate) fn total_len_mut(pieces: &[&mut [u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// The bytes of all pieces in one: copied to `spare` if they are several.
pub(crate) fn gather<'a>(pieces: &[&'a [u8]], spare: &'a mut Vec<u8>) -> &'a [u8] {
    match pieces {
        [] => &[],
        [one] => one,
        _ => {
            spare.clear();
            pieces.iter().for_each(|piece| spare.extend_from_slice(piece));
            spare
        }
    }
}

/// Has `write` fill all pieces: directly if they are one, else through `spare`.
pub(crate) fn scatter<E>(
    pieces: &mut [&mut [u8]],
    spare: &mut Vec<u8>,
    write: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if let [one] = pieces {
        return write(one);
    }
    let spare = grow(spare, total_len_mut(pieces));
    write(spare)?;
    copy_to_pieces(spare, pieces);
    Ok(())
}

/// Fills all pieces from `from`, which has as many bytes.
pub(crate) fn copy_to_pieces(from: &[u8], pieces: &mut [&mut [u8]]) {
    let mut from = from;
    for piece in pieces {
        let (here, next) = from.split_at(piece.len());
        piece.copy_from_slice(here);
        from = next;
    }
}

/// Fills `to` from all pieces, which have as many bytes.
pub(crate) fn copy_from_pieces(pieces: &[&[u8]], to: &mut [u8]) {
    let mut to = to;
    for piece in pieces {
        let (here, next) = to.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        to = next;
    }
}

/// Reads pieces from the front.
#[derive(Debug)]
pub(crate) struct PieceReader<'a> {
    pieces: &'a [&'a [u8]],
    /// What is left of the first piece that is not used up.
    current: &'a [u8],
}

impl<'a> PieceReader<'a> {
    pub(crate) fn new(pieces: &'a [&'a [u8]]) -> Self {
        PieceReader { pieces, current: &[] }
    }

    /// The next `len` bytes, which must be there: copied to `spare` where they cross pieces.
    pub(crate) fn take<'s>(&mut self, len: usize, spare: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        self.skip_used_up();
        if let Some((here, next)) = self.current.split_at_checked(len) {
            self.current = next;
            return here;
        }
        spare.clear();
        while spare.len() < len {
            let (here, next) = self.current.split_at(self.current.len().min(len - spare.len()));
            spare.extend_from_slice(here);
            self.current = next;
            self.skip_used_up();
        }
        spare
    }

    fn skip_used_up(&mut self) {
        while let ([], [first, others @ ..]) = (self.current, self.pieces) {
            (self.current, self.pieces) = (first, others);
        }
    }
}

/// Writes pieces from the front.
#[derive(Debug)]
pub(crate) struct PieceWriter<'a, 'p> {
    pieces: &'a mut [&'p mut [u8]],
    /// The bytes of the first piece that are written.
    written: usize,
}

impl<'a, 'p> PieceWriter<'a, 'p> {
    pub(crate) fn new(pieces: &'a mut [&'p mut [u8]]) -> Self {
        PieceWriter { pieces, written: 0 }
    }

    /// Leaves the next `len` bytes, which must be there, as they are.
    pub(crate) fn skip(&mut self, len: usize) {
        let mut left = len;
        while let (1.., [first, ..]) = (left, &*self.pieces) {
            let here = left.min(first.len() - self.written);
            (self.written, left) = (self.written + here, left - here);
            self.skip_written();
        }
    }

    /// Has `write` fill the next `len` bytes, which must be there: through `spare` where they cross
    /// pieces.
    pub(crate) fn fill<E>(
        &mut self,
        len: usize,
        spare: &mut Vec<u8>,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.skip_written();
        if let Some(here) = self.pieces.first_mut().and_then(|piece| {
            let end = self.written.checked_add(len)?;
            piece.get_mut(self.written..end)
        }) {
            self.written += len;
            return write(here);
        }
        let spare = grow(spare, len);
        write(spare)?;
        let mut from = &*spare;
        while let (false, [first, ..]) = (from.is_empty(), &mut *self.pieces) {
            let here = &mut first[self.written..];
            let (now, later) = from.split_at(here.len().min(from.len()));
            here[..now.len()].copy_from_slice(now);
            self.written += now.len();
            from = later;
            self.skip_written();
        }
        Ok(())
    }

    fn skip_written(&mut self) {
        while self.pieces.first().is_some_and(|piece| piece.len() == self.written) {
            self.pieces = &mut std::mem::take(&mut self.pieces)[1..];
            self.written = 0;
        }
    }
}

/// The first `len` bytes of a buffer, which grows to that if it has fewer.
pub(crate) fn grow(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
