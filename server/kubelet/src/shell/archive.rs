//! `tar`: creates and extracts archives from files or pipes, as used by `kubectl cp`. Reads ustar with long names of
//! GNU and pax, writes ustar with pax long names.

use bytes::Bytes;
use jiff::Timestamp;

use super::{Shell, Stdio};
use crate::filesystem::{Entry, FsError, MAX_TOTAL_BYTES, Node, resolve};
use crate::stream::Input;

const BLOCK_BYTES: usize = 512;
/// Maximum size of a file in an archive: no larger file could be stored.
const MAX_FILE_BYTES: u64 = MAX_TOTAL_BYTES as u64;

/// Parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct TarOptions {
    mode: Option<char>,
    archive: String,
    directory: Option<String>,
    verbose: bool,
    ignore_times: bool,
    strip_components: usize,
    gzip: bool,
    paths: Vec<String>,
}

fn parse_options(args: &[String]) -> Option<TarOptions> {
    let mut options = TarOptions { archive: "-".into(), ..TarOptions::default() };
    let mut args = args.iter();
    let mut first = true;
    while let Some(arg) = args.next() {
        let letters = match arg.strip_prefix('-') {
            Some("") => None,
            Some(long) if long.starts_with('-') => {
                let (name, value) = long[1..].split_once('=').unwrap_or((&long[1..], ""));
                match name {
                    "directory" => options.directory = Some(value.to_owned()),
                    "file" => options.archive = value.to_owned(),
                    "strip-components" => options.strip_components = value.parse().ok()?,
                    // Owners and permissions are not simulated.
                    _ => {}
                }
                first = false;
                continue;
            }
            Some(letters) => Some(letters),
            None if first => Some(arg.as_str()),
            None => None,
        };
        first = false;
        let Some(letters) = letters else {
            options.paths.push(arg.clone());
            continue;
        };
        for letter in letters.chars() {
            match letter {
                'c' | 'x' | 't' => options.mode = Some(letter),
                'f' => options.archive = args.next()?.clone(),
                'C' => options.directory = Some(args.next()?.clone()),
                'v' => options.verbose = true,
                'm' => options.ignore_times = true,
                'z' => options.gzip = true,
                _ => {}
            }
        }
    }
    Some(options)
}

/// Errors of creating or reading an archive.
#[derive(Debug, thiserror::Error)]
enum TarError {
    #[error("{0}: {1}")]
    File(String, FsError),
    #[error("short read")]
    Truncated,
    #[error("invalid tar header checksum")]
    Checksum,
    #[error("invalid number in header")]
    Number,
    #[error("{0}: file too large")]
    TooLarge(String),
    #[error("write error: {0}")]
    Output(#[from] std::io::Error),
}

pub async fn tar(shell: &Shell, args: &[String], io: &Stdio) -> std::io::Result<i32> {
    let options = match parse_options(args) {
        Some(options) if options.mode.is_some() && !options.gzip => options,
        Some(options) if options.gzip => {
            io.error("tar: gzip is not in this image").await;
            return Ok(1);
        }
        _ => {
            io.error("tar: must specify one of -c, -x, -t").await;
            return Ok(1);
        }
    };
    let result = match options.mode {
        Some('c') => create(shell, &options, io).await,
        _ => extract(shell, &options, io).await,
    };
    match result {
        Ok(code) => Ok(code),
        Err(TarError::Output(error)) => Err(error),
        Err(error) => {
            io.error(&format!("tar: {error}")).await;
            Ok(1)
        }
    }
}

async fn create(shell: &Shell, options: &TarOptions, io: &Stdio) -> Result<i32, TarError> {
    let base = options.directory.as_ref().map_or_else(|| shell.cwd.clone(), |d| resolve(&shell.cwd, d));
    let output = match options.archive.as_str() {
        "-" => io.stdout.clone(),
        path => shell.create(path, false, io).map_err(|e| TarError::File(path.into(), e))?,
    };
    let mut code = 0;
    let mut has_warned = false;
    for path in &options.paths {
        let root = resolve(&base, path);
        let entries = match shell.fs.walk(&root) {
            Ok(entries) => entries,
            Err(error) => {
                io.error(&format!("tar: {path}: {error}")).await;
                code = 1;
                continue;
            }
        };
        if path.starts_with('/') && !has_warned {
            has_warned = true;
            io.error("tar: removing leading '/' from member names").await;
        }
        let prefix = path.trim_start_matches('/').trim_end_matches('/');
        for (at, entry) in entries {
            let relative = at[root.trim_end_matches('/').len()..].trim_start_matches('/');
            let name = match (prefix, relative) {
                ("", "") => ".".to_owned(),
                ("", relative) => relative.to_owned(),
                (prefix, "") => prefix.to_owned(),
                (prefix, relative) => format!("{prefix}/{relative}"),
            };
            if options.verbose {
                io.error(&name).await;
            }
            output.send(Bytes::from(encode_member(&name, &entry))).await?;
        }
    }
    output.send(Bytes::from_static(&[0; BLOCK_BYTES * 2])).await?;
    if options.archive != "-" {
        output.finish().await?;
    }
    Ok(code)
}

/// Encodes header, content and padding of one archive member.
fn encode_member(name: &str, entry: &Entry) -> Vec<u8> {
    let (kind, content, link) = match &entry.node {
        Node::File(bytes) => (b'0', &bytes[..], ""),
        Node::Directory => (b'5', &b""[..], ""),
        Node::Link(target) => (b'2', &b""[..], target.as_str()),
    };
    let name = if kind == b'5' { format!("{name}/") } else { name.to_owned() };
    let mut out = Vec::new();
    if name.len() > 100 || link.len() > 100 {
        let mut records = encode_pax_record("path", &name);
        if !link.is_empty() {
            records.extend(encode_pax_record("linkpath", link));
        }
        out.extend(encode_header("././@PaxHeader", b'x', records.len(), 0o644, entry.modified, ""));
        append_padded(&mut out, &records);
    }
    out.extend(encode_header(&name, kind, content.len(), entry.mode, entry.modified, link));
    append_padded(&mut out, content);
    out
}

/// Encodes a pax record, `length key=value\n`. The length includes its own digits.
fn encode_pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n").into_bytes()
}

/// Appends content, padded to whole blocks.
fn append_padded(out: &mut Vec<u8>, content: &[u8]) {
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}

fn encode_header(name: &str, kind: u8, size: usize, mode: u32, modified: Timestamp, link: &str) -> [u8; BLOCK_BYTES] {
    let mut block = [0u8; BLOCK_BYTES];
    let mut put = |at: usize, width: usize, text: &[u8]| {
        let length = text.len().min(width);
        block[at..at + length].copy_from_slice(&text[..length]);
    };
    put(0, 100, name.as_bytes());
    put(100, 8, format!("{mode:07o}\0").as_bytes());
    put(108, 8, b"0000000\0");
    put(116, 8, b"0000000\0");
    put(124, 12, format!("{size:011o}\0").as_bytes());
    put(136, 12, format!("{:011o}\0", modified.as_second().max(0)).as_bytes());
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link.as_bytes());
    put(257, 8, b"ustar\x0000");
    put(265, 32, b"root");
    put(297, 32, b"root");
    let checksum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
    block
}

/// Parses a string that ends at the first NUL.
fn parse_string(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Parses a number in octal, or in GNU's binary format if the first bit is set.
fn parse_number(field: &[u8]) -> Result<u64, TarError> {
    if field.first().is_some_and(|b| b & 0x80 != 0) {
        return field[1..]
            .iter()
            .try_fold(0u64, |sum, b| sum.checked_mul(256)?.checked_add(u64::from(*b)))
            .ok_or(TarError::Number);
    }
    let text = parse_string(field);
    match text.trim() {
        "" => Ok(0),
        digits => u64::from_str_radix(digits, 8).map_err(|_| TarError::Number),
    }
}

/// Names from extension headers, which apply to the next member.
#[derive(Default)]
struct ExtendedNames {
    path: Option<String>,
    link: Option<String>,
}

async fn extract(shell: &Shell, options: &TarOptions, io: &Stdio) -> Result<i32, TarError> {
    let base = options.directory.as_ref().map_or_else(|| shell.cwd.clone(), |d| resolve(&shell.cwd, d));
    if !shell.fs.is_dir(&base) {
        let directory = options.directory.clone().unwrap_or_default();
        return Err(TarError::File(format!("can't change directory to '{directory}'"), FsError::NotFound));
    }
    if options.archive == "-" {
        let mut stdin = io.stdin.lock().await;
        extract_from(shell, options, &base, &mut stdin, io).await
    } else {
        let mut file = shell.open(&options.archive).map_err(|e| TarError::File(options.archive.clone(), e))?;
        extract_from(shell, options, &base, &mut file, io).await
    }
}

/// Reads an archive and extracts or lists its members.
async fn extract_from(
    shell: &Shell,
    options: &TarOptions,
    base: &str,
    input: &mut Input,
    io: &Stdio,
) -> Result<i32, TarError> {
    let mut extended = ExtendedNames::default();
    while let Some(block) = input.read_exact(BLOCK_BYTES).await {
        if block.iter().all(|b| *b == 0) {
            break;
        }
        let checksum: u64 =
            block.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) }).sum();
        if checksum != parse_number(&block[148..156])? {
            return Err(TarError::Checksum);
        }
        let size = parse_number(&block[124..136])?;
        let padding = (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64;
        let (prefix, short) = (parse_string(&block[345..500]), parse_string(&block[..100]));
        let name = if prefix.is_empty() || &block[257..262] != b"ustar" { short } else { format!("{prefix}/{short}") };
        if size > MAX_FILE_BYTES {
            return Err(TarError::TooLarge(name));
        }
        let content = input.read_exact(size as usize).await.ok_or(TarError::Truncated)?;
        if !input.skip(padding).await {
            return Err(TarError::Truncated);
        }
        let kind = block[156];
        match kind {
            b'L' => extended.path = Some(parse_string(&content)),
            b'K' => extended.link = Some(parse_string(&content)),
            b'x' => parse_pax_records(&content, &mut extended),
            b'g' => {}
            _ => {
                let ExtendedNames { path, link } = std::mem::take(&mut extended);
                let name = path.unwrap_or(name);
                let link = link.unwrap_or_else(|| parse_string(&block[157..257]));
                let modified = if options.ignore_times {
                    shell.clock.now()
                } else {
                    Timestamp::from_second(parse_number(&block[136..148])? as i64).unwrap_or_else(|_| shell.clock.now())
                };
                let node = match kind {
                    b'5' => Node::Directory,
                    b'2' => Node::Link(link),
                    b'1' => shell.fs.entry(&resolve(base, &link), true).map_err(|e| TarError::File(link, e))?.node,
                    _ => Node::File(Bytes::copy_from_slice(&content)),
                };
                let entry = Entry { node, mode: (parse_number(&block[100..108])? & 0o7777) as u32, modified };
                extract_member(shell, options, base, &name, entry, io).await?;
            }
        }
    }
    // Drain the input, so that the upstream writer does not fail on blocks after the end marker.
    while input.read_chunk().await.is_some() {}
    Ok(0)
}

/// Reads names from pax records.
fn parse_pax_records(content: &[u8], extended: &mut ExtendedNames) {
    let text = String::from_utf8_lossy(content);
    let mut rest = &text[..];
    while let Some((length, _)) = rest.split_once(' ') {
        let Some(record) = length.parse().ok().and_then(|n: usize| rest.get(length.len() + 1..n)) else { return };
        match record.trim_end_matches('\n').split_once('=') {
            Some(("path", value)) => extended.path = Some(value.to_owned()),
            Some(("linkpath", value)) => extended.link = Some(value.to_owned()),
            _ => {}
        }
        rest = &rest[length.len() + 1 + record.len()..];
    }
}

/// Lists or extracts one archive member.
async fn extract_member(
    shell: &Shell,
    options: &TarOptions,
    base: &str,
    name: &str,
    entry: Entry,
    io: &Stdio,
) -> Result<(), TarError> {
    let parts: Vec<&str> = name.split('/').filter(|p| !matches!(*p, "" | ".")).skip(options.strip_components).collect();
    if options.verbose || options.mode == Some('t') {
        io.stdout.send(Bytes::from(format!("{name}\n"))).await?;
    }
    let is_selected =
        options.paths.is_empty() || options.paths.iter().any(|p| name.starts_with(p.trim_start_matches("./")));
    if options.mode == Some('t') || parts.is_empty() || parts.contains(&"..") || !is_selected {
        return Ok(());
    }
    let path = resolve(base, &parts.join("/"));
    let now = shell.clock.now();
    let fail = |error| TarError::File(name.to_owned(), error);
    if let Some((parent, _)) = path.rsplit_once('/') {
        shell.fs.make_dir(if parent.is_empty() { "/" } else { parent }, true, now).map_err(fail)?;
    }
    shell.fs.put(&path, entry).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("cf - /tmp/x", Some('c'), None, &["/tmp/x"])]
    #[case("-xmf - -C /tmp", Some('x'), Some("/tmp"), &[])]
    #[case("--no-same-permissions --no-same-owner -xmf - -C /d", Some('x'), Some("/d"), &[])]
    #[case("-cf - -C /d .", Some('c'), Some("/d"), &["."])]
    fn command_lines_are_parsed(
        #[case] line: &str,
        #[case] mode: Option<char>,
        #[case] directory: Option<&str>,
        #[case] paths: &[&str],
    ) {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let options = parse_options(&args).unwrap();
        assert_eq!((options.mode, options.directory.as_deref(), options.archive.as_str()), (mode, directory, "-"));
        assert_eq!(options.paths, paths);
    }

    #[test]
    fn pax_record_lengths_include_their_digits() {
        for value in ["", "a", &"b".repeat(90), &"c".repeat(989)] {
            let record = String::from_utf8(encode_pax_record("path", value)).unwrap();
            assert_eq!(record.split(' ').next().unwrap().parse::<usize>().unwrap(), record.len());
        }
    }
}
