//! RFC 6902 patches from override entries: plaintext overriders patch the object, sub-path entries the text of a
//! field.
//!
//! Semantics and messages are those of the Go library that Karmada uses: a negative index counts from the end (`add`
//! at `-1` appends), a missing value means null, and only objects and lists are traversed.

use crowsnest_api::policy::OverriderOperator;
use serde_json::{Map, Value};

/// One operation of a patch.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    pub operator: &'a OverriderOperator,
    pub path: &'a str,
    pub value: Option<&'a Value>,
}

/// Error of a patch, with the messages of the Go library that Karmada uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("invalid operation {0}: unsupported operation")]
    Unsupported(String),
    #[error("json: cannot unmarshal {0} into Go value of type map[string]*jsonpatch.lazyNode")]
    NotADocument(&'static str),
    #[error("replace operation value must be object or array: %!w(<nil>)")]
    ReplacedByScalar,
    #[error("json: error calling MarshalJSON for type *jsonpatch.partialDoc: invalid value, expected object")]
    ReplacedByNull,
    #[error("invalid state detected")]
    NotJson,
    #[error("{operator} operation does not apply: doc is missing path: {path}: missing value")]
    MissingPath { operator: &'static str, path: String },
    #[error("replace operation does not apply: doc is missing key: {0}: missing value")]
    MissingKey(String),
    #[error("error in {operator} for path: '{path}': {cause}")]
    LastStep {
        operator: &'static str,
        path: String,
        #[source]
        cause: StepError,
    },
}

/// Error of the last step of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error("invalid value, expected object")]
    NoObject,
    #[error("unable to remove nonexistent key: {0}: missing value")]
    NoKey(String),
    #[error("Unable to access invalid index: {0}: invalid index referenced")]
    OutOfRange(i64),
    #[error("value was not a proper array index: '{key}': {source}")]
    NotAnIndex { key: String, source: NotANumber },
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
}

/// An invalid index, with the message of Go's `strconv`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strconv.Atoi: parsing {text:?}: {problem}")]
pub struct NotANumber {
    text: String,
    problem: &'static str,
}

/// Parses a list index like Go's `strconv.Atoi`.
pub fn atoi(text: &str) -> Result<i64, NotANumber> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let problem = if is_number { "value out of range" } else { "invalid syntax" };
    text.parse().map_err(|_| NotANumber { text: text.to_owned(), problem })
}

/// Unescapes a step of a path: `~1` is `/` and `~0` is `~`.
pub fn unescape(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// A node of a document that can be patched.
pub trait PatchNode: Sized {
    type Fields: ObjectFields<Self>;

    /// Converts the value of an override to a node.
    fn from_value(value: &Value) -> Self;
    /// Returns the contents of a node, after parsing it if that was not done yet.
    fn contents(&mut self) -> NodeContents<'_, Self>;
}

/// Contents of a node.
pub enum NodeContents<'a, T: PatchNode> {
    Object(&'a mut T::Fields),
    List(&'a mut Vec<T>),
    Null,
    /// A boolean, number or string, with its JSON type.
    Scalar(&'static str),
}

/// Fields of an object.
pub trait ObjectFields<T> {
    fn find_child(&mut self, key: &str) -> Option<&mut T>;
    /// Sets a field. A new one is appended.
    fn set_field(&mut self, key: &str, value: T);
    /// Removes a field. Returns true if it existed.
    fn remove_field(&mut self, key: &str) -> bool;
}

impl PatchNode for Value {
    type Fields = Map<String, Value>;

    fn from_value(value: &Value) -> Self {
        value.clone()
    }

    fn contents(&mut self) -> NodeContents<'_, Self> {
        match self {
            Value::Object(fields) => NodeContents::Object(fields),
            Value::Array(list) => NodeContents::List(list),
            Value::Null => NodeContents::Null,
            Value::Bool(_) => NodeContents::Scalar("bool"),
            Value::Number(_) => NodeContents::Scalar("number"),
            Value::String(_) => NodeContents::Scalar("string"),
        }
    }
}

impl ObjectFields<Value> for Map<String, Value> {
    fn find_child(&mut self, key: &str) -> Option<&mut Value> {
        self.get_mut(key)
    }

    fn set_field(&mut self, key: &str, value: Value) {
        self.insert(key.to_owned(), value);
    }

    fn remove_field(&mut self, key: &str) -> bool {
        self.remove(key).is_some()
    }
}

/// Applies the operations in order. After an error the document is partially patched and must be discarded.
pub fn apply<'a, T: PatchNode>(
    document: &mut T,
    operations: impl IntoIterator<Item = Operation<'a>>,
) -> Result<(), PatchError> {
    let operations: Vec<Operation<'a>> = operations.into_iter().collect();
    if let Some(unsupported) = operations.iter().find(|entry| matches!(entry.operator, OverriderOperator::Other(_))) {
        let entry = serde_json::json!({
            "op": unsupported.operator.as_str(), "path": unsupported.path, "value": unsupported.value,
        });
        return Err(PatchError::Unsupported(entry.to_string()));
    }
    if let NodeContents::Scalar(kind) = document.contents() {
        return Err(PatchError::NotADocument(kind));
    }
    operations.into_iter().try_for_each(|operation| operation.apply(document))
}

impl Operation<'_> {
    fn apply<T: PatchNode>(&self, document: &mut T) -> Result<(), PatchError> {
        match self.operator {
            OverriderOperator::Add if self.path.is_empty() => self.replace_document(document, true),
            OverriderOperator::Add => {
                let (parent, key) = self.resolve_parent("add", document)?;
                add(parent, &key, self.new_value()).map_err(|cause| self.error_at("add", cause))
            }
            OverriderOperator::Remove => {
                let (parent, key) = self.resolve_parent("remove", document)?;
                remove(parent, &key).map_err(|cause| self.error_at("remove", cause))
            }
            _ if self.path.is_empty() => self.replace_document(document, false),
            _ => {
                let (parent, key) = self.resolve_parent("replace", document)?;
                let target = find_child(parent, &key).ok_or_else(|| PatchError::MissingKey(self.path.to_owned()))?;
                *target = self.new_value();
                Ok(())
            }
        }
    }

    fn new_value<T: PatchNode>(&self) -> T {
        T::from_value(self.value.unwrap_or(&Value::Null))
    }

    /// Replaces the document; `is_add` is true for the operation `add`.
    fn replace_document<T: PatchNode>(&self, document: &mut T, is_add: bool) -> Result<(), PatchError> {
        let mut value: T = self.new_value();
        match value.contents() {
            NodeContents::Scalar(kind) if is_add => return Err(PatchError::NotADocument(kind)),
            NodeContents::Scalar(_) => return Err(PatchError::ReplacedByScalar),
            NodeContents::Null if is_add => return Err(PatchError::ReplacedByNull),
            _ => {}
        }
        *document = value;
        Ok(())
    }

    /// Resolves the parent of the path's last step.
    fn resolve_parent<'t, T: PatchNode>(
        &self,
        operator: &'static str,
        document: &'t mut T,
    ) -> Result<(&'t mut T, String), PatchError> {
        let missing_path = || {
            let path = if operator == "replace" { self.path.to_owned() } else { format!("\"{}\"", self.path) };
            PatchError::MissingPath { operator, path }
        };
        if self.path.is_empty() {
            return Ok((document, String::new()));
        }
        let (parents, last_step) = self.path.rsplit_once('/').ok_or_else(missing_path)?;
        let mut parent = document;
        for (depth, step) in parents.split('/').skip(1).enumerate() {
            parent = find_child(parent, &unescape(step)).filter(|_| depth < MAX_DEPTH).ok_or_else(missing_path)?;
            if let NodeContents::Null | NodeContents::Scalar(_) = parent.contents() {
                return Err(missing_path());
            }
        }
        Ok((parent, unescape(last_step)))
    }

    /// The error of an operation at its path.
    fn error_at(&self, operator: &'static str, cause: StepError) -> PatchError {
        PatchError::LastStep { operator, path: self.path.to_owned(), cause }
    }
}

/// Maximum depth of a path. Dropping a document of greater depth could overflow the stack.
const MAX_DEPTH: usize = 1000;

fn find_child<'t, T: PatchNode>(parent: &'t mut T, key: &str) -> Option<&'t mut T> {
    match parent.contents() {
        NodeContents::Object(fields) => fields.find_child(key),
        NodeContents::List(list) => {
            let index = resolve_index(atoi(key).ok()?, list.len()).ok()?;
            list.get_mut(index)
        }
        _ => None,
    }
}

/// Resolves an index into a list of `length`. Negative ones count from the end.
fn resolve_index(index: i64, length: usize) -> Result<usize, StepError> {
    let from_start = if index < 0 { index.saturating_add(i64::try_from(length).unwrap_or(i64::MAX)) } else { index };
    usize::try_from(from_start).ok().filter(|index| *index < length).ok_or(StepError::OutOfRange(index))
}

fn add<T: PatchNode>(parent: &mut T, key: &str, value: T) -> Result<(), StepError> {
    match parent.contents() {
        NodeContents::Object(fields) => fields.set_field(key, value),
        NodeContents::List(list) if key == "-" => list.push(value),
        NodeContents::List(list) => {
            let index = atoi(key).map_err(|source| StepError::NotAnIndex { key: key.to_owned(), source })?;
            list.insert(resolve_index(index, list.len() + 1)?, value);
        }
        _ => return Err(StepError::NoObject),
    }
    Ok(())
}

fn remove<T: PatchNode>(parent: &mut T, key: &str) -> Result<(), StepError> {
    match parent.contents() {
        NodeContents::Object(fields) => match fields.remove_field(key) {
            true => Ok(()),
            false => Err(StepError::NoKey(key.to_owned())),
        },
        NodeContents::List(list) => {
            let index = resolve_index(atoi(key)?, list.len())?;
            list.remove(index);
            Ok(())
        }
        _ => Err(StepError::NoObject),
    }
}
