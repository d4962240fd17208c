//! What the forms of names are called on the command line.

use kvtier::core::key::names::Form;

use crate::BadInput;

/// The names of all forms, for help and errors.
pub const ALL: &str = "mp-native, mp-3-field, mp-s3, mp-fs, mp-fs-native, mp-raw-block, text, s3, fs-connector, local-disk, gds, gds-sidecar, \
                       gds-weka, gds-weka-sidecar; mp-s3 and s3 take a prefix: s3:PREFIX";

/// Every form, S3's without a prefix.
pub fn all() -> Vec<Form> {
    let prefix = String::new;
    let gds = |weka, sidecar| Form::Gds { weka, sidecar };
    vec![
        Form::MpNative,
        Form::Mp3Field,
        Form::S3Mp { prefix: prefix() },
        Form::Fs,
        Form::FsNative,
        Form::RawBlock,
        Form::Text,
        Form::S3NonMp { prefix: prefix() },
        Form::FsConnector,
        Form::LocalDisk,
        gds(false, false),
        gds(false, true),
        gds(true, false),
        gds(true, true),
    ]
}

/// The form's name, which [`parse`] reads.
pub fn name(form: &Form) -> String {
    let prefixed = |name: &str, prefix: &str| {
        if prefix.is_empty() { name.into() } else { format!("{name}:{prefix}") }
    };
    match form {
        Form::MpNative => "mp-native".into(),
        Form::Mp3Field => "mp-3-field".into(),
        Form::S3Mp { prefix } => prefixed("mp-s3", prefix),
        Form::Fs => "mp-fs".into(),
        Form::FsNative => "mp-fs-native".into(),
        Form::RawBlock => "mp-raw-block".into(),
        Form::Text => "text".into(),
        Form::S3NonMp { prefix } => prefixed("s3", prefix),
        Form::FsConnector => "fs-connector".into(),
        Form::LocalDisk => "local-disk".into(),
        Form::Gds { weka, sidecar } => {
            ["gds", if *weka { "-weka" } else { "" }, if *sidecar { "-sidecar" } else { "" }]
                .concat()
        }
        other => format!("{other:?}"),
    }
}

/// Reads a form's name, with a prefix where the form has one.
pub fn parse(text: &str) -> Result<Form, BadInput> {
    let (bare, prefix) = text.split_once(':').unwrap_or((text, ""));
    let prefix = prefix.trim_matches('/').to_owned();
    let found = all().into_iter().find(|form| name(form) == bare);
    match found {
        Some(Form::S3Mp { .. }) => Ok(Form::S3Mp { prefix }),
        Some(Form::S3NonMp { .. }) => Ok(Form::S3NonMp { prefix }),
        Some(form) if prefix.is_empty() => Ok(form),
        _ => Err(BadInput(format!("no form {text:?}; choose one of {ALL}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_name_of_its_own_that_reads_back() {
        for form in all() {
            assert_eq!(parse(&name(&form)).unwrap(), form);
            assert!(ALL.contains(&name(&form)));
        }
        let prefixed = Form::S3NonMp { prefix: "kv/cache".into() };
        assert_eq!(parse("s3:/kv/cache/").unwrap(), prefixed);
        assert_eq!(parse(&name(&prefixed)).unwrap(), prefixed);
        for bad in ["", "fs", "text:x", "gds:"] {
            assert_eq!(parse(bad).is_ok(), bad == "gds:", "{bad}");
        }
    }
}
