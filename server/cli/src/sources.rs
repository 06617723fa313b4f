//! Objects given as files: `-f`, `-k` and `-R`, as in kubectl.

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use super::object::text;
use crate::verbs::interpret::files;
use crate::verbs::kubectl;

#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Files, glob patterns (in quotes), directories or URLs to read manifests from; - reads standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", value_delimiter = ',')]
    filenames: Vec<String>,
    /// Directory or URL to build with `kubectl kustomize`
    #[arg(short = 'k', long, value_name = "FOLDER", conflicts_with_all = ["filenames", "recursive"])]
    kustomize: Option<String>,
    /// Read the directories given with -f recursively
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl SourceArgs {
    /// True if no source is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.filenames.is_empty() && self.kustomize.is_none()
    }

    /// Reads all objects, in the order of their sources.
    pub(crate) async fn objects(&self) -> anyhow::Result<Vec<Value>> {
        let documents = match &self.kustomize {
            Some(folder) => {
                let built = kubectl::capture_output(&["kustomize", folder]).await;
                let built =
                    built.context("-k runs `kubectl kustomize`; without kubectl, build the manifests with another tool and pass them with `-f -`")?;
                files::parse(folder, None, built)?
            }
            None => files::read(&self.filenames, self.recursive).await?,
        };
        flatten_lists(documents.into_iter().map(|document| (document.source, document.body)))
    }
}

/// Splits Lists into their items; each object must have apiVersion, kind and name.
fn flatten_lists(documents: impl Iterator<Item = (String, Value)>) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (source, body) in documents {
        let items = match body.get("items").and_then(Value::as_array) {
            Some(items) if text(&body, "/kind").ends_with("List") => items.clone(),
            _ => vec![body],
        };
        for object in items {
            for field in ["/apiVersion", "/kind", "/metadata/name"] {
                if text(&object, field).is_empty() {
                    bail!("{source} contains an invalid object: {} is missing", field[1..].replace('/', "."));
                }
            }
            objects.push(object);
        }
    }
    if objects.is_empty() {
        bail!("no objects found in the files");
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case(json!({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]}), Ok(1))]
    #[case(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), Ok(1))]
    #[case(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}}), Err("a.yaml contains an invalid object: metadata.name is missing"))]
    #[case(json!({"kind": "Pod"}), Err("apiVersion is missing"))]
    #[case(json!({"apiVersion": "v1", "kind": "List", "items": []}), Err("no objects found in the files"))]
    fn lists_are_flattened(#[case] body: Value, #[case] expected: Result<usize, &str>) {
        match (flatten_lists([("a.yaml".to_owned(), body)].into_iter()), expected) {
            (Ok(objects), Ok(expected)) => assert_eq!(objects.len(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (objects, _) => panic!("{objects:?}"),
        }
    }

    #[tokio::test]
    async fn files_are_read_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let object = |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
        let write = |file: &str, content: &str| std::fs::write(dir.path().join(file), content).unwrap();
        write("b.yaml", &format!("# nothing\n---\n{}\n---\n{}\n", object("b"), object("c")));
        write(
            "a.json",
            r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}]}"#,
        );
        write("notes.txt", "no manifest");
        let read = async |name: &str| {
            let filenames = vec![dir.path().join(name).display().to_string()];
            SourceArgs { filenames, kustomize: None, recursive: false }.objects().await
        };
        let names: Vec<String> =
            read("").await.unwrap().iter().map(|object| text(object, "/metadata/name").to_owned()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(read("missing.yaml").await.unwrap_err().to_string().contains("missing.yaml"));
        write("empty.yaml", "---\n");
        assert_eq!(read("empty.yaml").await.unwrap_err().to_string(), "no objects found in the files");
    }
}
