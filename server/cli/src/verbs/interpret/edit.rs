//! `--edit`: opens the scripts of a customization in the user's editor and writes them back to their source.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use crowsnest_apimachinery::yaml;
use serde_json::{Value, json};

use super::customization;
use super::files::Document;
use super::script::{EditableCustomization, comment_out, without_comments};
use crate::output::Format;
use crate::output::terminal;

const RESOURCE: &str = "resourceinterpretercustomizations";
const HEADER: &str =
    "Edit the scripts below. Lines that begin with -- are ignored. If the file is not changed, nothing is written.
If the file is invalid, the editor opens it again with the error.
";
/// Environment variables that name the editor, in order of precedence.
const EDITORS: [&str; 2] = ["KUBE_EDITOR", "EDITOR"];

/// A temporary file for the editor. It is kept if the edit fails.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn write(text: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("crowsnest-edit-{}.lua", uuid::Uuid::new_v4()));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let context = || format!("cannot write {}", path.display());
        options.open(&path).and_then(|mut file| file.write_all(text.as_bytes())).with_context(context)?;
        Ok(Self { path })
    }

    /// Opens the editor and returns the edited text.
    fn edit(&self) -> anyhow::Result<String> {
        let configured = EDITORS.iter().filter_map(|name| std::env::var(name).ok()).find(|editor| !editor.is_empty());
        let editor = configured.unwrap_or_else(|| "vi".to_owned());
        let failure = || format!("there was a problem with the editor {editor:?}");
        let status = command(&editor, &self.path).status().with_context(failure)?;
        if !status.success() {
            bail!("{}", failure());
        }
        std::fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }

    fn remove(self) -> anyhow::Result<()> {
        std::fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }

    fn keep(&self) -> std::io::Result<()> {
        writeln!(terminal::stderr(), "A copy of your changes has been stored to {:?}", self.path)
    }
}

/// The command that opens a file in the editor. An editor with quotes or backslashes is run by the shell; others are
/// split at spaces.
fn command(editor: &str, file: &Path) -> Command {
    if editor.contains(['"', '\'', '\\']) {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        let mut command = Command::new(shell.unwrap_or_else(|| OsString::from("/bin/sh")));
        command.args(["-c", &format!("{editor} \"$0\"")]).arg(file);
        return command;
    }
    let mut words = editor.split(' ').filter(|word| !word.is_empty());
    let mut command = Command::new(words.next().unwrap_or("vi"));
    command.args(words).arg(file);
    command
}

/// Edits the only customization of `documents`, or a new one, and writes it to its file or to standard output. `docs`
/// shows the documentation of each script.
pub(super) fn edit(
    names: &[String],
    mut documents: Vec<Document>,
    docs: bool,
    output: Option<Format>,
) -> anyhow::Result<ExitCode> {
    let document = match documents.len() {
        0 => new_document(names)?,
        1 => documents.remove(0),
        _ => bail!("only one customization can be edited"),
    };
    let old = EditableCustomization::from_customization(&customization(&document)?);
    let Some(new) = edit_until_valid(&old, docs)? else {
        writeln!(terminal::stderr(), "Edit cancelled, no changes made.")?;
        return Ok(ExitCode::SUCCESS);
    };
    let body = set_edited_fields(document.body, &new)?;
    let text = if document.is_json { format!("{body:#}\n") } else { yaml::to_yaml(&body) };
    let mut out = std::io::stdout().lock();
    match &document.path {
        Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?,
        None => out.write_all(text.as_bytes())?,
    }
    let name = format!("resourceinterpretercustomization.config.karmada.io/{}", new.name);
    match output {
        None => writeln!(out, "{name} edited")?,
        Some(format) => format.print(&mut out, &body, |_| name.clone())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// An empty customization for a new or empty file.
fn new_document(names: &[String]) -> anyhow::Result<Document> {
    let [name] = names else {
        bail!("no customizations found. If you want to create a new one, please set only one file with '-f'");
    };
    let path = Some(PathBuf::from(name)).filter(|path| path.is_file());
    let body = json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization",
        "metadata": {}, "spec": {},
    });
    Ok(Document { source: name.clone(), path, is_json: false, body })
}

/// Opens the editor until the scripts are valid. Returns `None` if nothing changed.
fn edit_until_valid(old: &EditableCustomization, docs: bool) -> anyhow::Result<Option<EditableCustomization>> {
    let mut header = HEADER.to_owned();
    let mut text = old.render(docs);
    let mut rejected_draft: Option<Draft> = None;
    loop {
        let draft = Draft::write(&(comment_out(&header) + &text))?;
        let edited = match draft.edit() {
            Ok(edited) => edited,
            Err(error) => {
                rejected_draft.as_ref().unwrap_or(&draft).keep()?;
                return Err(error);
            }
        };
        if let Some(last) = rejected_draft.take() {
            if without_comments(&edited) == text {
                draft.keep()?;
                last.remove()?;
                bail!("Edit cancelled, no valid changes were saved.");
            }
            last.remove()?;
        }
        match old.parse(&edited) {
            Ok(new) => {
                draft.remove()?;
                return Ok((new != *old).then_some(new));
            }
            Err(error) => {
                writeln!(terminal::stderr(), "error: {RESOURCE} {:?} is invalid", old.name)?;
                header = format!("{HEADER}\n{RESOURCE} {:?} was not valid: {error}\n", old.name);
                text = without_comments(&edited);
                rejected_draft = Some(draft);
            }
        }
    }
}

/// Replaces the spec and the name of a document with the edited ones.
fn set_edited_fields(mut body: Value, new: &EditableCustomization) -> anyhow::Result<Value> {
    let spec = serde_json::to_value(&new.spec).context("cannot encode the customization")?;
    let fields = body.as_object_mut().context("the customization is not an object")?;
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut().context("metadata is not an object")?.insert("name".to_owned(), json!(new.name));
    fields.insert("spec".to_owned(), spec);
    Ok(body)
}
