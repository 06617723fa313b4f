//! Reads YAML or JSON documents from files, folders, URLs and standard input.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

pub(crate) const STANDARD_INPUT: &str = "-";
/// Extensions of the files that are read from folders. Files that are named directly can have any extension.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];
/// Maximum number of attempts to download a URL.
const MAX_ATTEMPTS: usize = 3;
/// Time between attempts to download a URL.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Connect and read timeout for URLs.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A document with its source.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) source: String,
    /// Path to write the document back to.
    pub(crate) path: Option<PathBuf>,
    pub(crate) is_json: bool,
    pub(crate) body: Value,
}

/// Reads all named sources, in order.
pub(crate) async fn read(names: &[String], recursive: bool) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for name in names {
        if name == STANDARD_INPUT {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
            documents.extend(parse("STDIN", None, bytes)?);
        } else if name.starts_with("http://") || name.starts_with("https://") {
            documents.extend(parse(name, None, fetch(name).await?)?);
        } else {
            for path in expand_pattern(name)?.iter().map(|path| files_in(path, recursive)) {
                for path in path? {
                    let source = path.display().to_string();
                    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {source}"))?;
                    documents.extend(parse(&source, Some(&path), bytes)?);
                }
            }
        }
    }
    Ok(documents)
}

/// Returns the path itself if it exists, or the matches of a glob pattern with Go's syntax: `*`, `?` and `[a-z]` within
/// a path segment.
fn expand_pattern(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    if std::fs::symlink_metadata(name).is_ok() {
        return Ok(vec![PathBuf::from(name)]);
    }
    let invalid = || format!("pattern {name:?} is not valid: syntax error in pattern");
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    let paths = glob::glob_with(&name.replace("[^", "[!"), options).with_context(invalid)?;
    let found: Vec<PathBuf> =
        paths.collect::<Result<_, _>>().with_context(|| format!("cannot read the matches of {name:?}"))?;
    if found.is_empty() {
        bail!("the path {name:?} does not exist");
    }
    Ok(found)
}

/// Returns the file itself, or the JSON and YAML files of a folder, sorted by name.
fn files_in(path: &Path, recursive: bool) -> anyhow::Result<Vec<PathBuf>> {
    match path.metadata() {
        Ok(found) if !found.is_dir() => return Ok(vec![path.to_owned()]),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!("the path {path:?} does not exist"),
        Err(error) => return Err(error).with_context(|| format!("the path {path:?} cannot be accessed")),
    }
    let mut found = Vec::new();
    collect_files(path, recursive, &mut found).with_context(|| format!("error reading {path:?}"))?;
    if found.is_empty() {
        bail!("error reading [{}]: recognized file extensions are [.json .yaml .yml]", path.display());
    }
    Ok(found)
}

/// Adds the JSON and YAML files of a folder, and of its subfolders if `recursive`.
fn collect_files(folder: &Path, recursive: bool, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    for path in paths {
        // Links to folders are not followed; they may form a cycle.
        if path.symlink_metadata()?.is_dir() {
            if recursive {
                collect_files(&path, recursive, found)?;
            }
        } else if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|supported| extension == *supported)) {
            found.push(path);
        }
    }
    Ok(())
}

/// Downloads a URL. Connection errors and 5xx responses are retried.
async fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    let client = reqwest::Client::builder().connect_timeout(READ_TIMEOUT).read_timeout(READ_TIMEOUT).build()?;
    let mut last_error = anyhow!("{url} was not requested");
    for attempt in 0..MAX_ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        match client.get(url).send().await {
            Ok(response) if response.status() == reqwest::StatusCode::OK => {
                return Ok(response.bytes().await.with_context(|| format!("cannot read {url}"))?.to_vec());
            }
            Ok(response) => {
                let status = response.status();
                last_error =
                    anyhow!("unable to read URL {url:?}, server reported {status}, status code={}", status.as_u16());
                if !status.is_server_error() {
                    break;
                }
            }
            Err(error) => last_error = anyhow::Error::new(error).context(format!("Get {url:?}")),
        }
    }
    Err(last_error)
}

/// Parses the documents of a text; empty ones are skipped.
pub(crate) fn parse(source: &str, path: Option<&Path>, bytes: Vec<u8>) -> anyhow::Result<Vec<Document>> {
    let context = || format!("error parsing {source}");
    let text = String::from_utf8(bytes).with_context(context)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let is_json = text.trim_start().starts_with('{');
    let bodies: Vec<Value> = match is_json {
        true => serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().with_context(context)?,
        false => serde_saphyr::from_multiple(text).with_context(context)?,
    };
    let document = |body| Document { source: source.to_owned(), path: path.map(Path::to_owned), is_json, body };
    Ok(bodies.into_iter().filter(|body| !body.is_null()).map(document).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str) -> Vec<Value> {
        parse("x", None, text.into()).unwrap().into_iter().map(|document| document.body).collect()
    }

    #[test]
    fn multiple_documents_are_parsed() {
        use serde_json::json;
        assert_eq!(bodies("a: 1\n---\n---\nb: [2]\n"), [json!({"a": 1}), json!({"b": [2]})]);
        assert_eq!(bodies("{\"a\": 1}\n{\"b\": [2]}"), [json!({"a": 1}), json!({"b": [2]})]);
        assert!(bodies("").is_empty() && bodies("# nothing\n").is_empty());
        let error = parse("x.yaml", None, b"a: [".to_vec()).unwrap_err();
        assert!(format!("{error:#}").starts_with("error parsing x.yaml: "), "{error:#}");
    }

    #[test]
    fn folders_are_read_in_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        for name in ["b.yaml", "a.json", "c.txt", "below/d.yml"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names = |path: &Path, recursive| -> Vec<String> {
            let found = files_in(path, recursive).unwrap();
            found.iter().map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(folder.path(), false), ["a.json", "b.yaml"]);
        assert_eq!(names(folder.path(), true), ["a.json", "b.yaml", "below/d.yml"]);
        assert_eq!(names(&folder.path().join("c.txt"), false), ["c.txt"]);
        let matched = |pattern: &str| {
            let found =
                expand_pattern(&folder.path().join(pattern).display().to_string()).map_err(|error| error.to_string());
            found.map(|found| found.iter().filter_map(|path| Some(path.file_name()?.display().to_string())).collect())
        };
        let some = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>());
        assert_eq!(matched("*.yaml"), some(&["b.yaml"]));
        assert_eq!(matched("[^b].*"), some(&["a.json", "c.txt"]));
        assert_eq!(matched("?el*"), some(&["below"]));
        assert_eq!(matched("c.txt"), some(&["c.txt"]));
        assert!(matched("*.toml").is_err_and(|error: String| error.ends_with("*.toml\" does not exist")));
        assert!(matched("[a").is_err_and(|error| error.contains("is not valid: syntax error in pattern")));
        let missing = files_in(&folder.path().join("none"), false).unwrap_err().to_string();
        assert!(missing.starts_with("the path \"") && missing.ends_with("none\" does not exist"), "{missing}");
    }
}
