//! The tar streams of `crowsnest cp`. Archives from containers are untrusted: entries must not leave the destination.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Builder, EntryType};

/// Writes a file, or a folder with its content, to an archive under a name.
pub(super) fn write(out: &mut impl Write, from: &Path, name: &Path) -> io::Result<()> {
    let mut archive = Builder::new(out);
    archive.follow_symlinks(false);
    // The source itself is followed if it is a link.
    let from = if from.is_symlink() { from.canonicalize()? } else { from.to_owned() };
    match from.is_dir() {
        true => archive.append_dir_all(name, &from)?,
        false => archive.append_path_with_name(&from, name)?,
    }
    archive.finish()
}

/// Extracts the entries below `base` to a local path; returns messages about skipped entries.
pub(super) fn extract(from: impl Read, base: &Path, to: &Path, preserve_modes: bool) -> io::Result<Vec<String>> {
    let mut skipped = Vec::new();
    let mut archive = Archive::new(from);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        let Some(target) = destination(&path, base, to) else {
            skipped.push(format!("skipped {}: outside of the requested path", path.display()));
            continue;
        };
        match kind {
            EntryType::Directory => std::fs::create_dir_all(&target)?,
            EntryType::Regular | EntryType::Continuous => {
                if let Some(folder) = target.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                let mut file = std::fs::File::create(&target)?;
                io::copy(&mut entry, &mut file)?;
                if preserve_modes {
                    set_mode(&file, entry.header().mode()?)?;
                }
            }
            EntryType::Symlink | EntryType::Link => {
                skipped.push(format!("skipped {}: links are not copied", path.display()));
            }
            _ => skipped.push(format!("skipped {}: neither a file nor a folder", path.display())),
        }
    }
    // The writer blocks until the stream is read to its end.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(skipped)
}

/// The destination of an entry; `None` if it is outside of the requested path or reached through a link.
fn destination(path: &Path, base: &Path, to: &Path) -> Option<PathBuf> {
    let normalized: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    let base: PathBuf = base.components().filter(|part| *part != Component::CurDir).collect();
    let relative = normalized.strip_prefix(base).ok()?;
    let mut target = to.to_owned();
    for part in relative.components() {
        let Component::Normal(name) = part else { return None };
        target.push(name);
        if target.is_symlink() {
            return None;
        }
    }
    Some(target)
}

#[cfg(unix)]
fn set_mode(file: &std::fs::File, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(mode & 0o777))
}

#[cfg(not(unix))]
fn set_mode(_: &std::fs::File, _: u32) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("conf");
        std::fs::create_dir_all(from.join("deep/er")).unwrap();
        std::fs::write(from.join("deep/er/a.txt"), "hello").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", from.join("link")).unwrap();
        let mut bytes = Vec::new();
        write(&mut bytes, &from, Path::new("app")).unwrap();
        let to = dir.path().join("back");
        let skipped = extract(bytes.as_slice(), Path::new("app"), &to, true).unwrap();
        assert_eq!(skipped, ["skipped app/link: links are not copied"]);
        assert_eq!(std::fs::read_to_string(to.join("deep/er/a.txt")).unwrap(), "hello");
        assert!(!to.join("link").exists());
    }

    #[test]
    fn single_files_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("a.txt");
        std::fs::write(&from, "hello").unwrap();
        let mut bytes = Vec::new();
        write(&mut bytes, &from, Path::new("b.txt")).unwrap();
        let to = dir.path().join("c.txt");
        assert_eq!(extract(bytes.as_slice(), Path::new("b.txt"), &to, false).unwrap(), Vec::<String>::new());
        assert_eq!(std::fs::read_to_string(to).unwrap(), "hello");
    }

    #[rstest::rstest]
    #[case("app/x", Some("to/x"))]
    #[case("./app/x", Some("to/x"))]
    #[case("app", Some("to"))]
    #[case("app/../../x", None)]
    #[case("/etc/passwd", None)]
    #[case("other/x", None)]
    fn entries_stay_below_the_destination(#[case] path: &str, #[case] expected: Option<&str>) {
        assert_eq!(destination(Path::new(path), Path::new("app"), Path::new("to")), expected.map(PathBuf::from));
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        std::fs::create_dir(&to).unwrap();
        std::os::unix::fs::symlink("/etc", to.join("out")).unwrap();
        assert_eq!(destination(Path::new("app/out/x"), Path::new("app"), &to), None);
    }
}
