use std::fmt::Write as _;

use super::{Form, Key, Role, all};

/// The line of docs/CONFIG.md before what is written from the table.
pub const BEGIN: &str = "<!-- from the table in code: begin -->";
/// The line after it.
pub const END: &str = "<!-- from the table in code: end -->";

/// The part of docs/CONFIG.md that the table says, from [`BEGIN`] to [`END`].
pub fn document() -> String {
    let mut out = format!("{BEGIN}\n");
    for (form, title) in SECTIONS {
        section(&mut out, *form, title);
    }
    out + "\n" + END
}

const SECTIONS: &[(Form, &str)] = &[
    (Form::Stack, "Native form: beside `tiers`"),
    (Form::Level, "Native form: every tier, as a part of the stack"),
    (Form::Of("host"), "Native form: tier `host`"),
    (Form::Of("file"), "Native form: tier `file`"),
    (Form::Of("gds"), "Native form: tier `gds`, besides the settings of `file`"),
    (Form::Of("s3"), "Tier and adapter `s3`"),
    (Form::Adapter, "Every tier and adapter but `host`, `file` and `gds`"),
    (Form::Of("eviction"), "The object `eviction`"),
    (Form::Of("fs"), "Tier and adapter `fs`"),
    (Form::Of("fs_native"), "Tier and adapter `fs_native`"),
    (Form::Of("raw_block"), "Tier and adapter `raw_block`"),
    (Form::Of("plugin"), "Adapter `plugin`"),
    (Form::Of("native_plugin"), "Adapter `native_plugin`"),
    (Form::Engine, "LMCache's file and environment"),
    (Form::Porting, "LMCache's file, the form of its guide for porting to S3"),
    (Form::Extra, "LMCache's `extra_config`"),
];

fn section(out: &mut String, form: Form, title: &str) {
    let _ = write!(
        out,
        "\n### {title}\n\n| key | takes | default | meaning | here |\n|---|---|---|---|---|\n"
    );
    for key in all().filter(|key| key.form == form) {
        let _ = writeln!(out, "{}", row(key));
    }
}

fn row(key: &Key) -> String {
    let default = match key.default_here() {
        "" if key.name == "relative_tmp_dir" => "empty".to_owned(),
        "" => "required".to_owned(),
        "null" => "-".to_owned(),
        text => format!("`{text}`"),
    };
    let here = match key.role {
        Role::Used | Role::Extra | Role::Plugin => "used",
        Role::Engine => "LMCache's own",
        Role::Ignored => "no effect",
        Role::Refused => "refused",
        Role::Gds => "GDS tier",
    };
    format!("| `{}` | {} | {default} | {} | {here} |", key.name, key.kind.takes(), key.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_a_section_and_no_name_is_twice_in_one() {
        for key in all() {
            assert!(SECTIONS.iter().any(|(form, _)| *form == key.form), "{}", key.name);
            assert_eq!(
                all().filter(|other| other.form == key.form && other.name == key.name).count(),
                1,
                "{}",
                key.name
            );
        }
    }
}
