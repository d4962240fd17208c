use io_uring::{IoUring, opcode, squeue, types};
use kvtier_mem::{Arena, RegionId};

use crate::running::PieceRequest;

/// Registered ranges; the kernel takes at most 1 GiB in one.
const RANGES_MAX: usize = 256;
const RANGE_BYTES_MAX: usize = 1 << 30;

/// How an arena was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Whether the engine uses the registration; otherwise the memory moves like any other.
    pub fixed: bool,
    /// The bytes newly pinned by the kernel.
    pub bytes: usize,
    /// Why not, or what was registered.
    pub reason: String,
}

/// Memory that the ring has pinned, and the arenas that keep it mapped.
#[derive(Debug, Default)]
pub struct RingMemory {
    arenas: Vec<Arena>,
    regions: Vec<RegionId>,
    /// First address, length; the position is the slot in the kernel's table. `None` until there
    /// is a table.
    ranges: Option<Vec<(usize, usize)>>,
}

impl RingMemory {
    /// Pins what of an arena is not pinned yet. Memory that the kernel will not pin moves like any
    /// other.
    pub fn add(&mut self, ring: &IoUring, arena: Arena) -> Registered {
        let mut bytes = 0;
        for region in arena
            .regions()
            .into_iter()
            .filter(|r| !self.regions.contains(&r.id))
            .collect::<Vec<_>>()
        {
            // The kernel limits one registered range to 1 GiB, so a large arena becomes several.
            for start in (0..region.len).step_by(RANGE_BYTES_MAX) {
                let len = RANGE_BYTES_MAX.min(region.len - start);
                // What was pinned so far stays useful, and the rest moves unregistered. The arena
                // is kept either way: the kernel's table refers to its pages until the ring is
                // gone.
                if let Err(why) = self.pin(ring, region.addr + start, len) {
                    self.arenas.push(arena);
                    let reason =
                        format!("{why}; {bytes} bytes registered, the rest moves unregistered");
                    return Registered { fixed: false, bytes, reason };
                }
                bytes += len;
            }
            self.regions.push(region.id);
        }
        self.arenas.push(arena);
        Registered { fixed: true, bytes, reason: format!("{bytes} bytes registered") }
    }

    fn pin(&mut self, ring: &IoUring, addr: usize, len: usize) -> Result<(), String> {
        if self.ranges.is_none() {
            let table = ring.submitter().register_buffers_sparse(RANGES_MAX as u32);
            table.map_err(|e| format!("the kernel keeps no table of registered memory: {e}"))?;
        }
        let ranges = self.ranges.get_or_insert_default();
        let slot = ranges.len();
        if slot == RANGES_MAX {
            return Err(format!("more than {RANGES_MAX} ranges of memory"));
        }
        let range = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
        // SAFETY: the range is the arena's, of which the caller keeps a clone in `arenas` until
        // after the ring is gone.
        unsafe { ring.submitter().register_buffers_update(slot as u32, &[range], None) }.map_err(
            |e| {
                let hint = if e.raw_os_error() == Some(libc::ENOMEM) {
                    " (over the limit of locked memory, see ulimit -l)"
                } else {
                    ""
                };
                format!("the kernel would not pin the memory: {e}{hint}")
            },
        )?;
        ranges.push((addr, len));
        Ok(())
    }

    fn slot(&self, addr: usize, len: usize) -> Option<u16> {
        // A request across two ranges is not registered: the kernel accepts one slot for one
        // request.
        let inside = |(start, n): &(usize, usize)| addr >= *start && addr + len <= start + n;
        self.ranges.iter().flatten().position(inside).map(|slot| slot as u16)
    }

    /// The kernel's form of a request, and whether it goes through pinned memory.
    pub fn entry(&self, request: &PieceRequest) -> (squeue::Entry, bool) {
        let PieceRequest { number, at, addr, .. } = *request;
        let fd = types::Fd(request.fd);
        let len = request.len as u32;
        let slot = self.slot(addr, request.len);
        let entry = match (request.read, slot) {
            (true, Some(slot)) => {
                opcode::ReadFixed::new(fd, addr as *mut u8, len, slot).offset(at).build()
            }
            (true, None) => opcode::Read::new(fd, addr as *mut u8, len).offset(at).build(),
            (false, Some(slot)) => {
                opcode::WriteFixed::new(fd, addr as *const u8, len, slot).offset(at).build()
            }
            (false, None) => opcode::Write::new(fd, addr as *const u8, len).offset(at).build(),
        };
        (entry.user_data(number), slot.is_some())
    }
}
