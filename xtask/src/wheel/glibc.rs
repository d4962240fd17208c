//! Which glibc a program or library needs: the newest version among the symbols that it takes from
//! it.

use std::fmt;

/// What versions of glibc's symbols are called.
const PREFIX: &str = "GLIBC_";
/// The type of the section that names the versions that a file needs.
const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc {
    pub major: u32,
    pub minor: u32,
}

/// What manylinux_2_28 allows.
pub const ALLOWED: Glibc = Glibc { major: 2, minor: 28 };

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Whether this is a program or a library.
pub fn is_elf(file: &[u8]) -> bool {
    file.starts_with(b"\x7fELF")
}

/// The newest version of glibc that a 64-bit little-endian ELF file needs; `None` where it needs
/// none, or its tables cannot be read.
pub fn newest(file: &[u8]) -> Option<Glibc> {
    needs(file)?.iter().filter_map(|name| version(name)).max()
}

/// The names of all versions of symbols that the file needs, such as `GLIBC_2.17`, of all
/// libraries.
fn needs(file: &[u8]) -> Option<Vec<String>> {
    let table = u64_at(file, 0x28)?;
    let entry = u16_at(file, 0x3a)?;
    let entries = u16_at(file, 0x3c)?;
    let header = |n: u32| usize::try_from(n).ok()?.checked_mul(entry)?.checked_add(table);
    let sections = 0..u32::try_from(entries).ok()?;
    let Some(found) =
        sections.filter_map(header).find(|at| u32_at(file, at + 4) == Some(SHT_GNU_VERNEED))
    else {
        return Some(Vec::new());
    };
    let names = u64_at(file, header(u32_at(file, found + 0x28)?)? + 0x18)?;
    let mut library = u64_at(file, found + 0x18)?;
    let mut all = Vec::new();
    for _ in 0..u32_at(file, found + 0x2c)? {
        let mut version = library.checked_add(usize32_at(file, library + 8)?)?;
        for _ in 0..u16_at(file, library + 2)? {
            all.push(text_at(file, names.checked_add(usize32_at(file, version + 8)?)?)?);
            version = version.checked_add(usize32_at(file, version + 12)?)?;
        }
        library = library.checked_add(usize32_at(file, library + 12)?)?;
    }
    Some(all)
}

fn bytes_at<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(file: &[u8], at: usize) -> Option<usize> {
    bytes_at(file, at).map(u16::from_le_bytes).map(usize::from)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    bytes_at(file, at).map(u32::from_le_bytes)
}

fn usize32_at(file: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32_at(file, at)?).ok()
}

fn u64_at(file: &[u8], at: usize) -> Option<usize> {
    // Offsets in a file that is in memory: no overflow beyond half of all addresses.
    usize::try_from(bytes_at(file, at).map(u64::from_le_bytes)?).ok().filter(|at| *at < file.len())
}

fn text_at(file: &[u8], at: usize) -> Option<String> {
    let text = file.get(at..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    String::from_utf8(text[..end].to_vec()).ok()
}

/// Reads `GLIBC_2.28` and `GLIBC_2.2.5`; `None` for other libraries and for `GLIBC_PRIVATE`.
fn version(name: &str) -> Option<Glibc> {
    let mut numbers = name.strip_prefix(PREFIX)?.split('.').map(str::parse);
    Some(Glibc { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file that has only a table of needed versions.
    fn elf(libraries: &[&[&str]]) -> Vec<u8> {
        let mut table = Vec::new();
        let mut names = vec![0];
        for (n, versions) in libraries.iter().enumerate() {
            let bytes = 16 + 16 * versions.len();
            let next = if n + 1 < libraries.len() { bytes } else { 0 };
            table.extend([1_u16, versions.len() as u16].map(u16::to_le_bytes).concat());
            table.extend([0, 16, next as u32].map(u32::to_le_bytes).concat());
            for version in *versions {
                table.extend([0, 0, names.len() as u32, 16].map(u32::to_le_bytes).concat());
                names.extend([version.as_bytes(), &[0]].concat());
            }
        }
        let begin = 64;
        let sections = 64 + table.len() + names.len();
        let section = |kind: u32, offset: usize, link: u32, info: usize| {
            let mut header = vec![0; 64];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x28..0x2c].copy_from_slice(&link.to_le_bytes());
            header[0x2c..0x30].copy_from_slice(&(info as u32).to_le_bytes());
            header
        };
        let mut file = vec![0; begin];
        file[..4].copy_from_slice(b"\x7fELF");
        file[0x28..0x30].copy_from_slice(&(sections as u64).to_le_bytes());
        file[0x3a..0x3e].copy_from_slice(&[64, 0, 2, 0]);
        let text = begin + table.len();
        [
            file,
            table,
            names,
            section(3, text, 0, 0),
            section(SHT_GNU_VERNEED, begin, 0, libraries.len()),
        ]
        .concat()
    }

    #[test]
    fn the_newest_version_counts_whatever_the_order_and_the_library() {
        let file = elf(&[
            &["GCC_9.0", "GCC_3.0"],
            &["GLIBC_2.14", "GLIBC_2.2.5", "GLIBC_2.34"],
            &["GLIBC_2.3"],
        ]);
        assert_eq!(needs(&file).unwrap().len(), 6);
        assert_eq!(newest(&file), Some(Glibc { major: 2, minor: 34 }));
        assert!(newest(&file) > Some(ALLOWED));
        assert!(newest(&elf(&[&["GLIBC_2.9"]])) < Some(ALLOWED), "numbers, not texts");
        assert_eq!(newest(&elf(&[&["GLIBC_PRIVATE", "GLIBC_", "GLIBC_2", "GCC_9.9"]])), None);
    }

    #[test]
    fn a_file_that_was_cut_names_nothing_and_does_no_harm() {
        let file = elf(&[&["GLIBC_2.14"]]);
        let newest = |len: usize| newest(&file[..len]);
        assert_eq!(newest(file.len()), Some(Glibc { major: 2, minor: 14 }));
        // The table of sections is at the end.
        assert!((0..file.len() - 64).all(|len| newest(len).is_none()));
    }

    #[test]
    fn a_program_of_this_machine_needs_what_the_tools_say() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_elf(&own) && newest(&own) > Some(Glibc { major: 2, minor: 2 }));
    }
}
