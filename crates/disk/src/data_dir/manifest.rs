//! The file `.kvtier/manifest`: the directory's layout, its format, and what its users agreed on. It
//! is replaced as a whole and synced, under the registration lock, and only when it changed. A
//! damaged manifest is [rebuilt](agree): it never makes a directory unusable.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::BlockSums;

use super::format::{FORMAT, FORMAT_ENCODED};
use super::scratch::is_scratch;
use super::{OPEN_WAIT_MAX, earlier_lock, internal_files, kind_of, layout_detection, repair};
use crate::layout::Layout;

const HEAD: &str = "kvtier directory\nformat: 3\n";
/// Format 4 is format 3 with chunks that may be encoded.
const HEAD_ENCODED: &str = "kvtier directory\nformat: 4\n";
/// Format 2 differs by the registration lock's name alone: see [`upgrade`](super::upgrade).
const HEAD_2: &str = "kvtier directory\nformat: 2\n";
/// The head of the first builds, whose manifests have no checksum.
const HEAD_1: &str = "kvtier directory\nformat: 1\n";
/// The first bytes of every build's manifest.
const ANY_HEAD: &str = "kvtier directory\nformat: ";
/// The longest manifest that is read, in bytes.
const BYTES_MAX: u64 = 8 << 20;

/// A manifest without its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The layout of the directory's files.
    pub layout: Layout,
    /// The cap of the process that opened the directory last.
    pub capacity_bytes: Option<u64>,
    /// Chunks may be encoded: the format is 4.
    pub has_encoded: bool,
    /// The chunks' geometry: `chunk ...` and `namespace ...` lines, by the text before the colon.
    pub agreed: BTreeMap<String, String>,
}

/// The state of a directory's manifest.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A manifest of this build's format.
    Whole(Manifest),
    /// A manifest of an earlier format. The chunks are the same: they can be read, and nothing is
    /// changed before the directory is [upgraded](super::upgrade).
    Older {
        /// Its format.
        format: u32,
        /// Its other lines.
        manifest: Manifest,
    },
    /// There is no manifest.
    Nothing,
    /// The file is damaged: why.
    Damaged(String),
}

impl Manifest {
    /// Reads the manifest of the directory `root`.
    ///
    /// # Errors
    /// `Invalid` for one of a newer build, `Denied` for one that may not be read, and those of the
    /// file system: a manifest that cannot be read now may be intact.
    pub fn find(root: &Path) -> Result<Found, Error> {
        let path = root.join(".kvtier/manifest");
        Self::find_by(root, || internal_files::read(&path, BYTES_MAX))
    }

    /// The same, by `read`.
    fn find_by(root: &Path, mut read: impl FnMut() -> io::Result<Vec<u8>>) -> Result<Found, Error> {
        // Once more after a media error: a device may deliver a sector at the second attempt, and a
        // damaged manifest is replaced.
        match read().or_else(|e| if internal_files::is_unreadable(&e) { read() } else { Err(e) }) {
            Ok(bytes) => Self::parse(&bytes).map_err(|format| {
                let what = format!(
                    "{} has format {format:?}, which a newer build of kvtier made; this build reads formats 1 to {FORMAT_ENCODED}: use that build, or \
                     another directory",
                    root.display()
                );
                Error::new(ErrorKind::Invalid, what)
            }),
            // `NotADirectory`: a file is in the place of `.kvtier`, which is repaired when the
            // directory is opened.
            Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => Ok(Found::Nothing),
            Err(e) if internal_files::is_not_a_file(&e) || internal_files::is_unreadable(&e) => {
                Ok(Found::Damaged(format!("cannot be read: {e}")))
            }
            // Any other error may be gone at the next try: a manifest that is replaced for it would
            // lose what peers agreed on.
            Err(e) => {
                let what = format!("cannot read {}/.kvtier/manifest", root.display());
                let next = match kind_of(&e) {
                    ErrorKind::Denied => "run as the user who owns the directory, or check its permissions",
                    _ => "check the file system and the limits of open files and memory, then try again",
                };
                Err(Error::new(kind_of(&e), what).with_cause(e, next))
            }
        }
    }

    /// Reads the manifest of the directory `root`, without writing. If it is damaged, the chunks show
    /// the layout, else it is the `wanted` one.
    ///
    /// # Errors
    /// Those of [`find`](Self::find), and `Invalid` where there is neither a manifest nor a chunk.
    pub fn read(root: &Path, wanted: Layout) -> Result<Self, Error> {
        let layout = || layout_detection::layout_of(root, wanted).map_err(|e| cannot_list(root, e));
        match Manifest::find(root)? {
            Found::Whole(manifest) | Found::Older { manifest, .. } => Ok(manifest),
            Found::Damaged(why) => {
                tracing::warn!("{}/.kvtier/manifest {why}", root.display());
                let layout = layout()?.unwrap_or(wanted);
                Self::anew(root, layout).map_err(|e| cannot_list(root, e))
            }
            // Chunks of layout `kvtier` are recognised by their names and footers, also without a
            // manifest.
            Found::Nothing if layout_detection::is_ours(root).unwrap_or(false) => {
                Self::anew(root, Layout::Kvtier).map_err(|e| cannot_list(root, e))
            }
            Found::Nothing => {
                let what = format!(
                    "{} is not a kvtier directory: it has no .kvtier/manifest; check the path",
                    root.display()
                );
                Err(Error::new(ErrorKind::Invalid, what))
            }
        }
    }

    /// The manifest of a directory that lost it, as far as its files show it.
    fn anew(root: &Path, layout: Layout) -> io::Result<Self> {
        let has_encoded = !layout.is_foreign() && layout_detection::has_other_lengths(root)?;
        Ok(Manifest { layout, has_encoded, ..Manifest::default() })
    }

    /// Writes it in one step. The caller holds the registration lock.
    pub fn write(&self, own: &Path) -> io::Result<()> {
        internal_files::replace_synced(own, "manifest", self.text().as_bytes())
    }

    /// Its text.
    pub(super) fn text(&self) -> String {
        let capacity = self.capacity_bytes.map(|bytes| format!("capacity: {bytes}\n"));
        let agreed: String =
            self.agreed.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let head = if self.has_encoded { HEAD_ENCODED } else { HEAD };
        with_crc(format!("{head}layout: {}\n{}{agreed}", self.layout, capacity.unwrap_or_default()))
    }

    /// Parses a manifest. Fails with the format of an intact manifest that this build does not read.
    fn parse(bytes: &[u8]) -> Result<Found, String> {
        let damaged = |why: &str| Ok(Found::Damaged(why.to_owned()));
        let Ok(text) = std::str::from_utf8(bytes) else { return damaged("is no text") };
        let lines_after = |text: &str, head| text.strip_prefix(head).and_then(Self::parse_lines);
        // First of all, because format 1 has no checksum.
        if let Some(manifest) = lines_after(text, HEAD_1) {
            return Ok(Found::Older { format: 1, manifest });
        }
        // From here on the checksum distinguishes damage from another build's manifest.
        let Some(body) = without_crc(text) else {
            return damaged("is damaged: its checksum is wrong");
        };
        if let Some(manifest) = lines_after(body, HEAD) {
            return Ok(Found::Whole(manifest));
        }
        if let Some(manifest) = lines_after(body, HEAD_ENCODED) {
            return Ok(Found::Whole(Manifest { has_encoded: true, ..manifest }));
        }
        if let Some(manifest) = lines_after(body, HEAD_2) {
            return Ok(Found::Older { format: 2, manifest });
        }
        match body.strip_prefix(ANY_HEAD) {
            // Whole, and still not understood: another build wrote it. To replace it would destroy
            // the directory for that build.
            Some(format) => Err(format.lines().next().unwrap_or_default().to_owned()),
            None => damaged("is another file"),
        }
    }

    /// `None` for an unknown line: another build wrote it, and its meaning is unknown.
    fn parse_lines(lines: &str) -> Option<Self> {
        let mut lines = lines.lines();
        let layout = lines.next()?.strip_prefix("layout: ")?.parse().ok()?;
        let mut manifest = Manifest { layout, ..Manifest::default() };
        for line in lines {
            match line.split_once(": ")? {
                ("capacity", bytes) => manifest.capacity_bytes = Some(bytes.parse().ok()?),
                // The first builds listed the open processes here.
                (name, _) if name.starts_with("open ") => {}
                (name, value) if name.starts_with("chunk ") => {
                    manifest.agreed.insert(name.to_owned(), value.to_owned());
                }
                (name, value) if name.starts_with("namespace ") => {
                    let (name, value) = with_layout(name, value)?;
                    manifest.agreed.insert(name, value.to_owned());
                }
                _ => return None,
            }
        }
        Some(manifest)
    }
}

/// The text and a last line with its checksum.
fn with_crc(text: String) -> String {
    format!("{text}crc: {:08x}\n", BlockSums::from_bytes(text.as_bytes()).whole())
}

/// The text before its last line, if that has the right checksum.
fn without_crc(text: &str) -> Option<&str> {
    let body = &text[..text.strip_suffix('\n')?.rfind('\n')? + 1];
    (with_crc(body.to_owned()) == text).then_some(body)
}

fn cannot_list(root: &Path, e: io::Error) -> Error {
    Error::new(kind_of(&e), format!("cannot list {}", root.display())).with_source(e)
}

/// A `namespace` line's name with the layout in it; the first builds put that before the value.
fn with_layout<'a>(name: &str, value: &'a str) -> Option<(String, &'a str)> {
    if name.split(' ').count() > 2 {
        return Some((name.to_owned(), value));
    }
    let (layout, value) = value.split_once(' ')?;
    Some((format!("{name} {layout}"), value))
}

/// Escapes a name so that it is one word of a line.
pub fn escape(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '%' | ' ' | ':' | '\n' | '\r' => word.push_str(&format!("%{:02X}", u32::from(c))),
            _ => word.push(c),
        }
    }
    word
}

/// Reverses [`escape`].
pub fn unescape(word: &str) -> String {
    let plain = [("%20", " "), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")];
    plain.iter().fold(word.to_owned(), |word, (escaped, plain)| word.replace(escaped, plain))
}

/// Refuses a directory of another program: one with files, but without a manifest or chunk of
/// kvtier.
pub fn refuse_foreign(root: &Path, own: &Path) -> Result<(), Error> {
    let path = own.join("manifest");
    match fs::symlink_metadata(&path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == Io::NotFound || e.kind() == Io::NotADirectory => {}
        Err(e) => {
            return Err(
                Error::new(kind_of(&e), format!("cannot use {}", path.display())).with_source(e)
            );
        }
    }
    // A first start that was killed before it wrote the manifest leaves `.kvtier` and empty shards.
    for entry in kvtier_os::read_dir(root).map_err(|e| cannot_list(root, e))?.flatten() {
        let name = entry.file_name();
        // Another process may be creating the directory now: the manifest is its first file.
        let ours = name == ".kvtier" || name == "lost+found" || is_scratch(&name);
        if !ours
            && !path.exists()
            && !layout_detection::is_ours(root).map_err(|e| cannot_list(root, e))?
        {
            let what = format!(
                "{} is not empty and not a kvtier directory (it holds {name:?}); choose an empty directory",
                root.display()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
    }
    Ok(())
}

/// Whether a damaged manifest that was [renamed](repair) has a line of a cap. One that cannot be read
/// has none.
pub fn damaged_one_has_cap(own: &Path) -> bool {
    let bytes = internal_files::read(&own.join("manifest.damaged"), BYTES_MAX).unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"capacity: "))
}

/// The error for a directory of an earlier format.
pub fn older(root: &Path, format: u32) -> Error {
    let root = root.display();
    let what = format!(
        "{root} has format {format}, which an earlier build of kvtier made; this build uses format {FORMAT}: stop the processes that have \
         the directory open, then run `kvtier migrate {root}`"
    );
    Error::new(ErrorKind::Invalid, what)
}

/// Refuses a directory of an earlier format, and one of a newer build. Reads and changes nothing
/// else.
pub fn refuse_other_formats(root: &Path) -> Result<(), Error> {
    match Manifest::find(root)? {
        Found::Older { format, .. } => Err(older(root, format)),
        Found::Whole(_) | Found::Nothing | Found::Damaged(_) => Ok(()),
    }
}

/// Checks the manifest against the `layout`, and writes one where it is missing. A damaged manifest
/// is renamed and rebuilt: the chunks show the layout, the configuration the rest, and the next saves
/// note the geometry again. The caller holds the registration lock. Returns a description of the
/// damage.
pub fn agree(root: &Path, own: &Path, layout: Layout) -> Result<Option<String>, Error> {
    let path = own.join("manifest");
    let fail = |e: io::Error| {
        Error::new(kind_of(&e), format!("cannot write {}", path.display())).with_source(e)
    };
    let found = Manifest::find(root)?;
    // Without a readable manifest the directory may be of an earlier build.
    // Held until this function ends, so that no process of an earlier build registers meanwhile.
    let _earlier = match &found {
        Found::Nothing | Found::Damaged(_) => {
            earlier_lock::exclude_earlier_builds(root, own, OPEN_WAIT_MAX)?
        }
        Found::Whole(_) | Found::Older { .. } => None,
    };
    let said = match found {
        Found::Whole(manifest) => {
            return refuse_layout(root, manifest.layout, layout).map(|()| None);
        }
        Found::Older { format, .. } => return Err(older(root, format)),
        Found::Nothing => None,
        Found::Damaged(why) => {
            let there =
                layout_detection::layout_of(root, layout).map_err(|e| cannot_list(root, e))?;
            // Checked before the damaged file is renamed: a refused process changes nothing.
            refuse_layout(root, there.unwrap_or(layout), layout)?;
            Some(
                repair::rename_damaged_because(own, &path, &why).map_err(fail)?
                    + ", and a new one was made",
            )
        }
    };
    let manifest = Manifest::anew(root, layout).map_err(|e| cannot_list(root, e))?;
    manifest.write(own).map_err(fail)?;
    Ok(said)
}

/// Refuses a directory that has another layout than the configured one.
pub fn refuse_layout(root: &Path, there: Layout, layout: Layout) -> Result<(), Error> {
    if there == layout {
        return Ok(());
    }
    let what = format!(
        "{} has layout {there}, the configuration has {layout}; say layout: {there}",
        root.display()
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "kvtier directory\nformat: 1\nlayout: kvtier\n";

    fn whole(text: &str) -> Option<Manifest> {
        match Manifest::parse(text.as_bytes()) {
            Ok(Found::Whole(manifest) | Found::Older { manifest, .. }) => Some(manifest),
            _ => None,
        }
    }

    #[test]
    fn lines_of_the_first_builds_are_read() {
        let old = whole(&format!("{OURS}open host.7.1.0: 9\nnamespace t: 0a 0=8192 whole\n"));
        let new = whole(&with_crc(format!("{HEAD}layout: kvtier\nnamespace t 0a: 0=8192 whole\n")));
        assert!(old.is_some() && old == new, "{old:?} {new:?}");
    }

    #[test]
    fn a_manifest_comes_back_and_a_change_of_any_bit_is_damage() {
        for (capacity_bytes, layout) in
            [None, Some(1), Some(u64::MAX)].into_iter().cycle().zip(Layout::ALL)
        {
            let agreed = [(format!("chunk {}", escape("a b:\n%")), "any whole".to_owned())].into();
            let has_encoded = capacity_bytes == Some(1);
            let manifest = Manifest { layout, capacity_bytes, has_encoded, agreed };
            let bytes = manifest.text().into_bytes();
            assert_eq!(Manifest::parse(&bytes), Ok(Found::Whole(manifest)));
            for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(
                    matches!(Manifest::parse(&flipped), Ok(Found::Damaged(_))),
                    "bit {bit} of byte {at}"
                );
            }
            for cut in 0..bytes.len() {
                assert!(
                    matches!(Manifest::parse(&bytes[..cut]), Ok(Found::Damaged(_))),
                    "cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_read_now_is_not_damaged() {
        use nix::libc::{
            EACCES, EIO, ELOOP, EMFILE, ENFILE, ENOENT, ENOMEM, ENOTDIR, ENXIO, ESTALE, ETIMEDOUT,
        };
        let find = |errors: &[i32]| {
            let mut errors = errors.iter();
            let whole = with_crc(format!("{HEAD}layout: kvtier\n")).into_bytes();
            Manifest::find_by(Path::new("/d"), || {
                errors.next().map_or(Ok(whole.clone()), |e| Err(io::Error::from_raw_os_error(*e)))
            })
        };
        for errors in [
            &[ESTALE][..],
            &[ETIMEDOUT],
            &[ENOMEM],
            &[EMFILE],
            &[ENFILE],
            &[EACCES],
            &[EIO, ESTALE],
        ] {
            let e = find(errors).unwrap_err();
            assert!(
                std::error::Error::source(&e).is_some()
                    && e.to_string().contains("/d/.kvtier/manifest"),
                "{errors:?}: {e}"
            );
        }
        let denied = find(&[EACCES]).unwrap_err();
        let next = std::error::Error::source(&denied).unwrap().to_string();
        assert!(
            denied.kind() == ErrorKind::Denied && next.contains("run as the user who owns"),
            "{next}"
        );
        assert!(matches!(find(&[EIO]), Ok(Found::Whole(_))), "read again");
        for errors in [&[EIO, EIO][..], &[ELOOP], &[ENXIO]] {
            assert!(matches!(find(errors), Ok(Found::Damaged(_))), "{errors:?}");
        }
        assert!([ENOENT, ENOTDIR].iter().all(|e| matches!(find(&[*e]), Ok(Found::Nothing))));
    }

    #[test]
    fn what_is_whole_and_not_understood_is_of_another_build() {
        let text = |body: &str| with_crc(body.to_owned()).into_bytes();
        assert_eq!(
            Manifest::parse(&text("kvtier directory\nformat: 5\nanything\n")),
            Err("5".to_owned())
        );
        assert_eq!(
            Manifest::parse(&text(&format!("{HEAD}layout: kvtier\ncolour: red\n"))),
            Err("3".to_owned())
        );
        for other in ["", "kvtier", "\n", "a thesis\n", OURS.trim_end_matches("kvtier\n")] {
            assert!(matches!(Manifest::parse(other.as_bytes()), Ok(Found::Damaged(_))), "{other}");
        }
        assert!(matches!(Manifest::parse(&text("another file\n")), Ok(Found::Damaged(_))));
    }
}
