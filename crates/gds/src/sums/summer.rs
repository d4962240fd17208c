use std::error::Error;
use std::ffi::CStr;

use kvtier_core::key::BlockSums;
use kvtier_mem::cuda::{Gpu, GpuKernel, GpuStream};
use kvtier_mem::{Arena, Lease};

/// Bytes that one thread sums, as the kernel has it.
pub const UNIT: usize = 2048;

/// The most bytes that are summed at once.
pub const RANGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of a sum, and of all sums of the longest range.
const SUM: usize = size_of::<u32>();
const SUMS: usize = RANGE_BYTES_MAX / UNIT * SUM;
/// Threads of a block; as many as any GPU takes.
const THREADS: u32 = 128;
/// The four tables, in bytes.
const TABLES: usize = 4 * 256 * SUM;
/// Units over which a GPU must prove that it sums rightly: more than one block of threads, and the
/// last one not whole.
const TRIED: usize = 300;

const PTX: &str = concat!(include_str!("crc32c.ptx"), "\0");

/// Why something did not work on a GPU.
type Failed = Box<dyn Error + Send + Sync>;

/// Takes CRC32C of memory of one GPU.
#[derive(Debug)]
pub struct Summer {
    kernel: GpuKernel,
    tables: Lease,
    /// For sums on their way to the host.
    results: Arena,
}

impl Summer {
    /// Loads the kernel, and believes it only if it sums noise as the CPU does. Up to `at_once`
    /// ranges can be summed at the same time.
    pub fn new(gpu: &Gpu, at_once: usize) -> Result<Self, Failed> {
        let text = CStr::from_bytes_with_nul(PTX.as_bytes())?;
        let (kernel, stream) = (gpu.kernel(text, c"kvtier_crc32c")?, gpu.stream()?);
        let mut tables = Arena::device(gpu, TABLES)?.lease(TABLES)?;
        stream.upload(&tables_le(), &mut tables, 0, || ())?;
        let results = Arena::device(gpu, at_once * SUMS)?;
        let summer = Summer { kernel, tables, results };
        summer.proves_itself(gpu, &stream)?;
        Ok(summer)
    }

    fn proves_itself(&self, gpu: &Gpu, stream: &GpuStream) -> Result<(), Failed> {
        let mut noise = vec![0; TRIED * UNIT];
        crate::random::fill_random(&mut noise);
        let mut lease = Arena::device(gpu, noise.len())?.lease(noise.len())?;
        stream.upload(&noise, &mut lease, 0, || ())?;
        let sums = self.sum(stream, &lease, (0, noise.len()))?;
        let right = noise.chunks(UNIT).map(|unit| BlockSums::from_bytes(unit).whole());
        if sums.iter().copied().eq(right) {
            return Ok(());
        }
        Err("this GPU does not sum as the CPU does".into())
    }

    /// CRC32C of each unit of the range (start, length) of device memory, whose address and length
    /// are multiples of [`UNIT`]; at least one unit, and at most [`RANGE_BYTES_MAX`]. Nobody
    /// else writes there meanwhile. It fails where too many are at it.
    pub fn sum(
        &self,
        stream: &GpuStream,
        of: &Lease,
        (at, len): (usize, usize),
    ) -> Result<Vec<u32>, Failed> {
        let (from, inside) =
            (of.addr().wrapping_add(at), at.checked_add(len).is_some_and(|end| end <= of.len()));
        let fits = (from | len).is_multiple_of(UNIT) && inside && of.gpu() == Some(stream.gpu());
        let units = u32::try_from(len / UNIT).ok().filter(|units| fits && *units > 0);
        let units = units.ok_or_else(|| format!("no {len} bytes at {from} can be summed"))?;
        let results = self.room(units)?;
        let args = [from, self.tables.addr(), results.addr()].map(|addr| addr as u64);
        let args = [args[0], args[1], args[2], units.into()];
        // SAFETY: the kernel has these four parameters. It reads `units` units from `from` on,
        // which lie in `of`, and the tables, and writes as many words to `results`, for
        // which this call's own lease has room; all are memory of the stream's GPU and outlive the
        // call.
        unsafe { stream.launch(&self.kernel, (units.div_ceil(THREADS), THREADS), &args) }?;
        let mut bytes = vec![0; units as usize * SUM];
        stream.download_lease(&results, 0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Room for the sums of so many units: the same for few as for the most, or what short ranges
    /// leave between longer ones would be of no use.
    fn room(&self, units: u32) -> Result<Lease, Failed> {
        if units as usize * SUM > SUMS {
            return Err(format!("{units} units are more than can be summed at once").into());
        }
        Ok(self.results.lease(SUMS)?)
    }
}

/// What each byte of four contributes to CRC32C, as the GPU reads it.
fn tables_le() -> Vec<u8> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let bit = |crc: u32| (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
    let mut tables = [[0; 256]; 4];
    tables[0] = std::array::from_fn(|byte| (0..8).fold(byte as u32, |crc, _| bit(crc)));
    for (table, n) in (1..4).flat_map(|table| (0..256).map(move |n| (table, n))) {
        let before: u32 = tables[table - 1][n];
        tables[table][n] = (before >> 8) ^ tables[0][(before & 255) as usize];
    }
    tables.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use kvtier_fakegpu::{Fakes, Report};

    use super::*;

    #[test]
    fn as_many_ranges_fit_at_once_as_were_asked_for() {
        let body = || {
            let summer = Summer::new(&Gpu::open(0).unwrap(), 2).unwrap();
            let most = (RANGE_BYTES_MAX / UNIT) as u32;
            let (short, _long) = (summer.room(1).unwrap(), summer.room(most).unwrap());
            summer.room(1).unwrap_err();
            drop(short);
            summer.room(most).unwrap();
            summer.room(most + 1).unwrap_err();
        };
        Fakes::new().run(
            "sums::summer::tests::as_many_ranges_fit_at_once_as_were_asked_for",
            body,
            Report::is_clean,
        );
    }

    #[test]
    fn what_is_no_range_of_units_of_this_gpu_is_refused() {
        let body = || {
            let (gpu, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
            let (summer, stream) = (Summer::new(&gpu, 1).unwrap(), gpu.stream().unwrap());
            let lease = Arena::device(&gpu, 8192).unwrap().lease(8192).unwrap();
            for range in [
                (0, 0),
                (1, 2048),
                (0, 2049),
                (4096, 6144),
                (8192, 2048),
                (usize::MAX - 2047, 4096),
            ] {
                assert!(summer.sum(&stream, &lease, range).is_err(), "{range:?}");
            }
            assert_eq!(
                summer.sum(&stream, &lease, (2048, 6144)).unwrap(),
                [BlockSums::from_bytes(&[0; UNIT]).whole(); 3]
            );
            let there = Arena::device(&other, 8192).unwrap().lease(8192).unwrap();
            assert!(summer.sum(&stream, &there, (0, 2048)).is_err(), "memory of another GPU");
            assert!(
                summer.sum(&other.stream().unwrap(), &there, (0, 2048)).is_err(),
                "a stream of another GPU"
            );
        };
        let fakes = Fakes::new().devices(2);
        fakes.run(
            "sums::summer::tests::what_is_no_range_of_units_of_this_gpu_is_refused",
            body,
            Report::is_clean,
        );
    }
}
