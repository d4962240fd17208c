//! The CRC32C kernel of one GPU.

use std::error::Error;
use std::ffi::CStr;

use kvtier_core::key::BlockSums;
use kvtier_mem::cuda::{Gpu, GpuKernel, GpuStream};
use kvtier_mem::{Arena, Lease};

use crate::incompressible_bytes::fill_random;

/// Bytes that one thread of the kernel checksums.
pub const UNIT_BYTES: usize = 2048;

/// The longest range that one launch checksums.
pub const RANGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of a CRC, and of the CRCs of the longest range.
const CRC_BYTES: usize = size_of::<u32>();
const RESULT_BYTES: usize = RANGE_BYTES_MAX / UNIT_BYTES * CRC_BYTES;
/// Threads of a block; every GPU supports that many.
const THREADS: u32 = 128;
/// Bytes of the four tables.
const TABLES_BYTES: usize = 4 * 256 * CRC_BYTES;
/// Units of the self-test: more than one block of threads, the last one incomplete.
const SELF_TEST_UNITS: usize = 300;

const PTX: &str = concat!(include_str!("crc32c.ptx"), "\0");

/// An error of a GPU call, or a failed check.
type KernelError = Box<dyn Error + Send + Sync>;

/// Computes CRC32C of memory of one GPU.
#[derive(Debug)]
pub struct Crc32cKernel {
    kernel: GpuKernel,
    tables: Lease,
    /// For CRCs on their way to the host.
    results: Arena,
}

/// A range of a lease.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumRange {
    pub start: usize,
    pub len: usize,
}

impl Crc32cKernel {
    /// Loads the kernel and tests it: its checksums of random bytes must equal those of the CPU. Up
    /// to `concurrency` ranges can be checksummed at the same time.
    pub fn new(gpu: &Gpu, concurrency: usize) -> Result<Self, KernelError> {
        let text = CStr::from_bytes_with_nul(PTX.as_bytes())?;
        let kernel = gpu.kernel(text, c"kvtier_crc32c")?;
        let stream = gpu.stream()?;
        let mut tables = Arena::device(gpu, TABLES_BYTES)?.lease(TABLES_BYTES)?;
        stream.upload(&tables_le(), &mut tables, 0, || ())?;
        let results = Arena::device(gpu, concurrency * RESULT_BYTES)?;
        let kernel = Crc32cKernel { kernel, tables, results };
        // A kernel that computes wrong sums would have good chunks count as corrupt.
        kernel.self_test(gpu, &stream)?;
        Ok(kernel)
    }

    fn self_test(&self, gpu: &Gpu, stream: &GpuStream) -> Result<(), KernelError> {
        let mut random = vec![0; SELF_TEST_UNITS * UNIT_BYTES];
        fill_random(&mut random);
        let mut lease = Arena::device(gpu, random.len())?.lease(random.len())?;
        stream.upload(&random, &mut lease, 0, || ())?;
        let crcs = self.checksum(stream, &lease, ChecksumRange { start: 0, len: random.len() })?;
        let expected = random.chunks(UNIT_BYTES).map(|unit| BlockSums::from_bytes(unit).whole());
        if crcs.iter().copied().eq(expected) {
            return Ok(());
        }
        Err("this GPU computes other checksums than the CPU".into())
    }

    /// Computes the CRC32C of each unit of a range of device memory. Address and length are multiples
    /// of [`UNIT_BYTES`]; the range has at least one unit and at most [`RANGE_BYTES_MAX`] bytes. No
    /// other task may write into it meanwhile.
    ///
    /// # Errors
    /// An unsuitable range, more concurrent ranges than the kernel was created for, or a failed GPU
    /// call.
    pub fn checksum(
        &self,
        stream: &GpuStream,
        of: &Lease,
        ChecksumRange { start, len }: ChecksumRange,
    ) -> Result<Vec<u32>, KernelError> {
        let from = of.addr().wrapping_add(start);
        // The kernel checks nothing: an address outside would fault the context, for all users of
        // the GPU in this process.
        let is_inside = start.checked_add(len).is_some_and(|end| end <= of.len());
        let is_aligned = (from | len).is_multiple_of(UNIT_BYTES);
        let is_valid = is_inside && is_aligned && of.gpu() == Some(stream.gpu());
        let units = u32::try_from(len / UNIT_BYTES).ok().filter(|units| is_valid && *units > 0);
        let units = units.ok_or_else(|| format!("cannot checksum {len} bytes at {from}"))?;
        let results = self.result_lease(units)?;
        let args = [from, self.tables.addr(), results.addr()].map(|addr| addr as u64);
        let args = [args[0], args[1], args[2], units.into()];
        // SAFETY: the kernel has these four parameters. It reads `units` units at `from`, which are
        // inside `of`, and the tables, and writes one word per unit to `results`, a lease of this
        // call that is large enough. All are memory of the stream's GPU and outlive the call.
        unsafe { stream.launch(&self.kernel, units.div_ceil(THREADS), THREADS, &args) }?;
        // The download runs on the same stream, so it waits for the kernel.
        let mut bytes = vec![0; units as usize * CRC_BYTES];
        stream.download_lease(&results, 0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Memory for the CRCs of `units` units. All leases have the size of the longest range, which
    /// avoids fragmentation.
    fn result_lease(&self, units: u32) -> Result<Lease, KernelError> {
        if units as usize * CRC_BYTES > RESULT_BYTES {
            return Err(format!("{units} units exceed the longest range").into());
        }
        Ok(self.results.lease(RESULT_BYTES)?)
    }
}

/// The tables of slicing-by-4 CRC32C, little-endian.
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
    fn the_configured_number_of_ranges_fits_at_once() {
        let body = || {
            let kernel = Crc32cKernel::new(&Gpu::open(0).unwrap(), 2).unwrap();
            let most = (RANGE_BYTES_MAX / UNIT_BYTES) as u32;
            let short = kernel.result_lease(1).unwrap();
            let _long = kernel.result_lease(most).unwrap();
            kernel.result_lease(1).unwrap_err();
            drop(short);
            kernel.result_lease(most).unwrap();
            kernel.result_lease(most + 1).unwrap_err();
        };
        Fakes::new().run(
            "checksum::kernel::tests::the_configured_number_of_ranges_fits_at_once",
            body,
            Report::assert_clean,
        );
    }

    #[test]
    fn an_invalid_range_is_refused() {
        let body = || {
            let gpu = Gpu::open(0).unwrap();
            let other = Gpu::open(1).unwrap();
            let kernel = Crc32cKernel::new(&gpu, 1).unwrap();
            let stream = gpu.stream().unwrap();
            let lease = Arena::device(&gpu, 8192).unwrap().lease(8192).unwrap();
            for (start, len) in [
                (0, 0),
                (1, 2048),
                (0, 2049),
                (4096, 6144),
                (8192, 2048),
                (usize::MAX - 2047, 4096),
            ] {
                let range = ChecksumRange { start, len };
                assert!(kernel.checksum(&stream, &lease, range).is_err(), "{range:?}");
            }
            assert_eq!(
                kernel.checksum(&stream, &lease, ChecksumRange { start: 2048, len: 6144 }).unwrap(),
                [BlockSums::from_bytes(&[0; UNIT_BYTES]).whole(); 3]
            );
            let elsewhere = Arena::device(&other, 8192).unwrap().lease(8192).unwrap();
            let range = ChecksumRange { start: 0, len: 2048 };
            let result = kernel.checksum(&stream, &elsewhere, range);
            assert!(result.is_err(), "memory of another GPU");
            let result = kernel.checksum(&other.stream().unwrap(), &elsewhere, range);
            assert!(result.is_err(), "a stream of another GPU");
        };
        let fakes = Fakes::new().devices(2);
        fakes.run(
            "checksum::kernel::tests::an_invalid_range_is_refused",
            body,
            Report::assert_clean,
        );
    }
}
