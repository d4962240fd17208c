use super::{Loss, NAME_BYTES_MAX, NameForm, Parsed};

/// Every reading of a name of unknown form, likeliest first; empty if it is no name of a chunk.
/// Paths may precede file names. The prefix of a multi-process S3 path cannot be distinguished
/// from the model's own `/` and is read as part of it. A form in which LMCache would write the key
/// differently is returned only if no other fits.
pub fn detect(name: &str) -> Vec<(NameForm, Parsed)> {
    if name.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let file = name.rsplit('/').next().unwrap_or(name);
    // Forms whose name has no `/`: directories before it belong to the path of a store.
    let in_file = [NameForm::Fs, NameForm::FsNative, NameForm::FsConnector, NameForm::LocalDisk];
    // Forms whose `/`, if any, is part of the name.
    let whole = [
        NameForm::MpNative,
        NameForm::Text,
        NameForm::RawBlock,
        NameForm::Mp3Field,
        NameForm::S3Mp { prefix: String::new() },
    ];
    let gds = [(false, false), (false, true), (true, false), (true, true)];
    let gds = gds.map(|(weka, sidecar)| NameForm::Gds { weka, sidecar });
    // Its directories are part of the name.
    let dirs = name.rmatch_indices('/').nth(3).map_or(name, |(at, _)| &name[at + 1..]);
    let candidates = (in_file.into_iter().map(|form| (form, file)))
        .chain(gds.into_iter().map(|form| (form, name)))
        .chain(whole.into_iter().map(|form| (form, name)))
        .chain([(s3_non_mp(name), name), (NameForm::VllmFs, dirs)]);
    let mut found: Vec<(NameForm, Parsed)> = candidates
        .filter_map(|(form, text)| form.parse(text).ok().map(|parsed| (form, parsed)))
        .collect();
    // A form that LMCache would spell otherwise is kept only if nothing better is left.
    if found.iter().any(|(_, parsed)| parsed.loss() != Some(Loss::Spelling)) {
        found.retain(|(_, parsed)| parsed.loss() != Some(Loss::Spelling));
    }
    // The two forms differ in negative ranks only: for all others `Fs` says the same.
    let by_fs = found.iter().any(|(form, _)| *form == NameForm::Fs);
    found.retain(|(form, _)| !(by_fs && *form == NameForm::FsNative));
    found
}

/// An in-process S3 name holds no `/` of its own: what stands before the last one is the prefix.
fn s3_non_mp(path: &str) -> NameForm {
    let dirs = path.rsplit_once('/').map_or("", |(dirs, _)| dirs);
    let prefix = dirs.strip_prefix('/').unwrap_or(dirs);
    NameForm::S3NonMp { prefix: crate::python_text::unquoted(prefix).unwrap_or_default() }
}
