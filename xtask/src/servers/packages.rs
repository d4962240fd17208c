//! What the servers are made of, installed where it is missing.

use anyhow::Result;

use crate::sh::Cmd;

/// The longest that an installation may take.
const LIMIT_S: u64 = 30 * 60;

/// Makes sure that the programs are there, from these Debian packages; otherwise why not.
pub fn debian(programs: &[&str], packages: &[&str]) -> Result<Option<String>> {
    if programs.iter().all(|program| is_there(program)) {
        return Ok(None);
    }
    let by_hand = format!("install the Debian packages {}", packages.join(" "));
    if !Cmd::new("apt-get --version").works() || Cmd::new("id -u").read()?.trim() != "0" {
        return Ok(Some(by_hand));
    }
    eprintln!("installing the Debian packages {}", packages.join(" "));
    let apt = |line: &str| {
        Cmd::new("apt-get -o DPkg::Lock::Timeout=120").args(line.split(' ')).limit_s(LIMIT_S)
    };
    let install = apt("install -y -qq --no-install-recommends").args(packages.iter().copied());
    let (_, updated) = apt("update -qq").try_read()?;
    match install.env("DEBIAN_FRONTEND", "noninteractive").try_read()? {
        (true, _) if programs.iter().all(|program| is_there(program)) => Ok(None),
        (_, said) => {
            let said = [updated, said].concat();
            let last: Vec<&str> =
                said.lines().rev().filter(|line| !line.is_empty()).take(2).collect();
            Ok(Some(format!("{by_hand}; doing so failed: {}", last.join("; "))))
        }
    }
}

/// Whether the shell finds the program.
pub fn is_there(program: &str) -> bool {
    Cmd::new("which").arg(program).works()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_needs_no_package() {
        assert_eq!(debian(&["true", "sh"], &["no-such-package"]).unwrap(), None);
        assert!(!is_there("no-such-program"));
    }
}
