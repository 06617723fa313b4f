//! In-memory file systems of containers, created from the image's default files and the pod's mounts. They are lost
//! when the container restarts.
//!
//! Volumes that outlive a container are separate file systems, which are mounted into those of all containers that
//! use them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;

/// Maximum total file content of one container, in bytes.
pub(super) const MAX_TOTAL_BYTES: usize = 256 << 20;

/// Type and content of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Directory,
    File(Bytes),
    Link(String),
}

/// A directory entry with its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub node: Node,
    pub mode: u32,
    pub modified: Timestamp,
}

/// Errors of file operations, with the messages of libc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    #[error("No such file or directory")]
    NotFound,
    #[error("Not a directory")]
    NotADirectory,
    #[error("Is a directory")]
    IsADirectory,
    #[error("File exists")]
    Exists,
    #[error("Directory not empty")]
    NotEmpty,
    #[error("No space left on device")]
    NoSpace,
    #[error("Too many levels of symbolic links")]
    Loop,
}

/// A file system. Paths must be absolute; see [`resolve`].
#[derive(Debug, Default)]
pub struct FileSystem {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Mounted file systems and their mount paths, deepest path first.
    mounts: Vec<(String, Arc<FileSystem>)>,
}

/// Resolves `path` against `cwd` and removes `.`, `..` and repeated slashes.
pub fn resolve(cwd: &str, path: &str) -> String {
    let joined = if path.starts_with('/') { path.to_owned() } else { format!("{cwd}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Returns the last component of a path.
pub fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

type Entries = BTreeMap<String, Entry>;

/// Resolves the symbolic links in the parents of `path`, and in its last component with `follow_last`.
fn resolve_links(entries: &Entries, path: &str, follow_last: bool) -> Result<String, FsError> {
    let mut path = resolve("/", path);
    for _ in 0..16 {
        let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]).collect();
        let link = ends.into_iter().filter(|end| follow_last || *end < path.len()).find_map(|end| {
            match entries.get(&path[..end]) {
                Some(Entry { node: Node::Link(target), .. }) => Some((end, target.clone())),
                _ => None,
            }
        });
        let Some((end, target)) = link else { return Ok(path) };
        path = resolve(parent(&path[..end]), &format!("{target}{}", &path[end..]));
    }
    Err(FsError::Loop)
}

impl FileSystem {
    pub fn new(now: Timestamp) -> Self {
        let fs = Self::default();
        fs.entries.lock().insert("/".into(), Entry { node: Node::Directory, mode: 0o755, modified: now });
        fs
    }

    /// Mounts a file system at `path`. It is listed in its parent only if `path` is an existing directory.
    pub fn mount(&mut self, path: &str, mounted: Arc<FileSystem>) {
        self.mounts.push((resolve("/", path), mounted));
        self.mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    }

    /// Returns the mounted file system that contains `path`, and the path within it.
    fn find_mount<'a>(&'a self, path: &'a str) -> Option<(&'a FileSystem, &'a str)> {
        self.mounts.iter().find_map(|(at, mounted)| match path.strip_prefix(at.as_str())? {
            "" => Some((&**mounted, "/")),
            rest => rest.starts_with('/').then_some((&**mounted, rest)),
        })
    }

    /// Returns the entry at `path`. A link in the last component is followed if `follow_last` is set.
    pub fn entry(&self, path: &str, follow_last: bool) -> Result<Entry, FsError> {
        let entries = self.entries.lock();
        let path = resolve_links(&entries, path, follow_last)?;
        if let Some((mounted, path)) = self.find_mount(&path) {
            return mounted.entry(path, follow_last);
        }
        entries.get(&path).cloned().ok_or(FsError::NotFound)
    }

    /// True if `path` is a directory or a link to one.
    pub fn is_dir(&self, path: &str) -> bool {
        self.entry(path, true).is_ok_and(|e| e.node == Node::Directory)
    }

    /// Reads a file. Fails for directories.
    pub fn read(&self, path: &str) -> Result<Bytes, FsError> {
        match self.entry(path, true)?.node {
            Node::File(bytes) => Ok(bytes),
            Node::Directory => Err(FsError::IsADirectory),
            Node::Link(_) => Err(FsError::Loop),
        }
    }

    /// Lists a directory, sorted by name.
    pub fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, FsError> {
        let entries = self.entries.lock();
        let path = resolve_links(&entries, path, true)?;
        if let Some((mounted, path)) = self.find_mount(&path) {
            return mounted.list(path);
        }
        match entries.get(&path) {
            None => return Err(FsError::NotFound),
            Some(entry) if entry.node != Node::Directory => return Err(FsError::NotADirectory),
            Some(_) => {}
        }
        let prefix = if path == "/" { path.clone() } else { format!("{path}/") };
        let descendants = entries.range(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix));
        let children = descendants.filter(|(p, _)| p.len() > prefix.len() && !p[prefix.len()..].contains('/'));
        Ok(children.map(|(p, e)| (p[prefix.len()..].to_owned(), e.clone())).collect())
    }

    /// Stores an entry at `path`, replacing an existing file or link.
    pub fn put(&self, path: &str, entry: Entry) -> Result<(), FsError> {
        let mut entries = self.entries.lock();
        let path = resolve_links(&entries, path, !matches!(entry.node, Node::Link(_)))?;
        if let Some((mounted, path)) = self.find_mount(&path) {
            return mounted.put(path, entry);
        }
        match entries.get(parent(&path)).map(|e| &e.node) {
            None => return Err(FsError::NotFound),
            Some(Node::Directory) => {}
            Some(_) => return Err(FsError::NotADirectory),
        }
        match (entries.get(&path).map(|e| &e.node), &entry.node) {
            (Some(Node::Directory), Node::Directory) => {}
            (Some(Node::Directory), _) => return Err(FsError::IsADirectory),
            (Some(_), Node::Directory) => return Err(FsError::Exists),
            _ => {}
        }
        let size = |node: &Node| if let Node::File(bytes) = node { bytes.len() } else { 0 };
        let used_bytes: usize = entries.iter().filter(|(p, _)| **p != path).map(|(_, e)| size(&e.node)).sum();
        if used_bytes + size(&entry.node) > MAX_TOTAL_BYTES {
            return Err(FsError::NoSpace);
        }
        entries.insert(path, entry);
        Ok(())
    }

    /// Replaces the content of a file, or creates it with mode 0644.
    pub fn write(&self, path: &str, bytes: Bytes, now: Timestamp) -> Result<(), FsError> {
        let mode = self.entry(path, true).map_or(0o644, |e| e.mode);
        self.put(path, Entry { node: Node::File(bytes), mode, modified: now })
    }

    /// Appends to a file, or creates it.
    pub fn append(&self, path: &str, bytes: &[u8], now: Timestamp) -> Result<(), FsError> {
        let mut content = match self.read(path) {
            Ok(bytes) => bytes.to_vec(),
            Err(FsError::NotFound) => Vec::new(),
            Err(error) => return Err(error),
        };
        content.extend_from_slice(bytes);
        self.write(path, content.into(), now)
    }

    /// Creates a directory. With `parents`, missing parents are created too and an existing directory is not an
    /// error.
    pub fn make_dir(&self, path: &str, parents: bool, now: Timestamp) -> Result<(), FsError> {
        let path = resolve("/", path);
        let directory = Entry { node: Node::Directory, mode: 0o755, modified: now };
        if parents {
            let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
            for end in ends.into_iter().chain([path.len()]) {
                if !self.is_dir(&path[..end]) {
                    self.put(&path[..end], directory.clone())?;
                }
            }
            return Ok(());
        }
        match self.entry(&path, true) {
            Ok(_) => Err(FsError::Exists),
            Err(_) => self.put(&path, directory),
        }
    }

    /// Removes a file or link. Directories are removed, with their content, only if `recursive` is set.
    pub fn remove(&self, path: &str, recursive: bool) -> Result<(), FsError> {
        let mut entries = self.entries.lock();
        let path = resolve_links(&entries, path, false)?;
        if let Some((mounted, path)) = self.find_mount(&path) {
            return mounted.remove(path, recursive);
        }
        let entry = entries.get(&path).ok_or(FsError::NotFound)?;
        if entry.node == Node::Directory && !recursive {
            return Err(FsError::IsADirectory);
        }
        let prefix = format!("{}/", path.trim_end_matches('/'));
        entries.retain(|p, _| p == "/" || (*p != path && !p.starts_with(&prefix)));
        Ok(())
    }

    /// Returns the entry at `path` and all entries below it, with absolute paths.
    pub fn walk(&self, path: &str) -> Result<Vec<(String, Entry)>, FsError> {
        let entries = self.entries.lock();
        let path = resolve_links(&entries, path, false)?;
        if let Some((mounted, inner)) = self.find_mount(&path) {
            let at = path.strip_suffix(inner).unwrap_or(&path);
            let to_absolute = |(p, entry): (String, Entry)| (format!("{at}{}", p.trim_end_matches('/')), entry);
            return Ok(mounted.walk(inner)?.into_iter().map(to_absolute).collect());
        }
        let first = entries.get(&path).ok_or(FsError::NotFound)?;
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let descendants = entries.range(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix));
        let unmounted = descendants.filter(|(p, _)| **p != path && self.find_mount(p).is_none());
        let mut descendants: BTreeMap<String, Entry> = unmounted.map(|(p, e)| (p.clone(), e.clone())).collect();
        for (at, mounted) in self.mounts.iter().filter(|(at, _)| at.starts_with(&prefix)) {
            descendants
                .extend(mounted.walk("/")?.into_iter().map(|(p, e)| (format!("{at}{}", p.trim_end_matches('/')), e)));
        }
        Ok([(path.clone(), first.clone())].into_iter().chain(descendants).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("/", "a", "/a")]
    #[case("/a/b", "../c/./d", "/a/c/d")]
    #[case("/a", "/x//y/", "/x/y")]
    #[case("/", "../..", "/")]
    fn paths_are_normalized(#[case] cwd: &str, #[case] path: &str, #[case] expected: &str) {
        assert_eq!(resolve(cwd, path), expected);
    }

    #[test]
    fn files_are_written_read_and_removed_also_through_links() {
        let now = Timestamp::UNIX_EPOCH;
        let fs = FileSystem::new(now);
        fs.make_dir("/a/b", true, now).unwrap();
        fs.write("/a/b/f", Bytes::from_static(b"one"), now).unwrap();
        fs.append("/a/b/f", b" two", now).unwrap();
        assert_eq!(fs.read("/a/b/f").unwrap(), "one two");
        let link = Entry { node: Node::Link("b".into()), mode: 0o777, modified: now };
        fs.put("/a/l", link).unwrap();
        assert_eq!(fs.read("/a/l/f").unwrap(), "one two");
        assert_eq!(fs.list("/a").unwrap().into_iter().map(|(n, _)| n).collect::<Vec<_>>(), ["b", "l"]);
        assert_eq!(fs.write("/missing/f", Bytes::new(), now), Err(FsError::NotFound));
        assert_eq!(fs.remove("/a", false), Err(FsError::IsADirectory));
        fs.remove("/a/l", false).unwrap();
        assert_eq!(fs.read("/a/b/f").unwrap(), "one two");
        fs.remove("/a", true).unwrap();
        assert_eq!(fs.walk("/").unwrap().len(), 1);
        assert_eq!(fs.write("/big", Bytes::from(vec![0; MAX_TOTAL_BYTES + 1]), now), Err(FsError::NoSpace));
    }

    #[test]
    fn containers_share_mounted_file_systems() {
        let now = Timestamp::UNIX_EPOCH;
        let volume = Arc::new(FileSystem::new(now));
        let container = || {
            let mut fs = FileSystem::new(now);
            fs.make_dir("/data", true, now).unwrap();
            fs.mount("/data", volume.clone());
            fs
        };
        let (one, two) = (container(), container());
        one.make_dir("/data/sub", false, now).unwrap();
        one.write("/data/sub/f", Bytes::from_static(b"kept"), now).unwrap();
        assert_eq!(two.read("/data/sub/f").unwrap(), "kept");
        assert_eq!(two.list("/data").unwrap().len(), 1);
        assert!(two.is_dir("/data") && !two.is_dir("/database"));
        let paths = |path: &str| two.walk(path).unwrap().into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(paths("/"), ["/", "/data", "/data/sub", "/data/sub/f"]);
        assert_eq!(paths("/data"), ["/data", "/data/sub", "/data/sub/f"]);
        two.remove("/data/sub/f", false).unwrap();
        assert_eq!(one.read("/data/sub/f"), Err(FsError::NotFound));
    }
}
