//! Conversion of objects to the versions of their managers: an entry of `metadata.managedFields` has fields of its
//! own version.
//!
//! Conversion can require a webhook call, but this crate has no side effects. When a conversion is missing, an
//! operation returns [`ApplyError::ConversionRequired`]; the registry performs the conversion and repeats the
//! operation. Objects with a single version need no conversion.

use std::borrow::Cow;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::Value;

use super::path::{FieldSet, PathElement};
use super::validate;
use crate::{ListType, Schema, SchemaRef, Type};

/// State of a version of a kind.
#[derive(Debug, Clone)]
pub enum VersionState {
    Served(SchemaRef),
    /// No longer served; its entries are dropped.
    NotServed,
    /// Conversion to the version is impossible, with the error message.
    Inconvertible(String),
}

/// Position of the number of replicas in a version of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicasPath<'a> {
    /// The path, such as `.spec.replicas`.
    At(&'a str),
    /// The version has no scale.
    NoScale,
    /// The kind has no such version.
    UnknownVersion,
}

/// Schemas of a kind by version.
pub trait VersionSchemas: std::fmt::Debug + Send + Sync {
    /// State of another version of the kind, in which managers may have written fields.
    fn version(&self, _api_version: &str) -> VersionState {
        VersionState::NotServed
    }

    /// Path of the number of replicas in another version of the kind, which need not be served.
    fn replicas_path(&self, _api_version: &str) -> ReplicasPath<'_> {
        ReplicasPath::UnknownVersion
    }
}

/// Error of an operation on managedFields.
#[derive(Debug)]
pub enum ApplyError {
    /// The operation must be repeated with the result of this conversion.
    ConversionRequired(Conversion),
    Failed(ApiError),
}

impl From<ApiError> for ApplyError {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// A required conversion of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversion {
    pub object: Value,
    /// API version, such as `apps/v1`.
    pub to: String,
}

/// Versions of a kind, and the conversions performed so far or their errors.
#[derive(Debug, Default)]
pub struct Versions<'a> {
    /// `None` for a kind with one version.
    schemas: Option<&'a dyn VersionSchemas>,
    conversions: Vec<(Conversion, Result<Value, String>)>,
}

impl<'a> Versions<'a> {
    pub fn new(schemas: &'a dyn VersionSchemas) -> Self {
        Self { schemas: Some(schemas), conversions: Vec::new() }
    }

    /// The schema of a version; `None` if it is not served. `own_version` is that of the request, and `schema` is the
    /// schema of that version.
    pub(super) fn schema<'s>(
        &self,
        version: &str,
        own_version: &str,
        schema: Option<&'s Schema>,
    ) -> Result<Option<VersionSchema<'s>>, ApplyError> {
        if version == own_version {
            return Ok(Some(VersionSchema::Own(schema)));
        }
        match self.schemas.map_or(VersionState::NotServed, |schemas| schemas.version(version)) {
            VersionState::Served(schema) => Ok(Some(VersionSchema::Other(schema))),
            VersionState::NotServed => Ok(None),
            VersionState::Inconvertible(reason) => Err(ApplyError::Failed(ApiError::without_reason(500, reason))),
        }
    }

    /// Converts an object to another version; `purpose` is the prefix of an error.
    pub(super) fn convert<'v>(
        &'v self,
        object: &'v Value,
        (from, to): (&str, &str),
        purpose: &str,
    ) -> Result<Cow<'v, Value>, ApplyError> {
        if from == to {
            return Ok(Cow::Borrowed(object));
        }
        match self.conversions.iter().find(|(conversion, _)| conversion.to == to && conversion.object == *object) {
            Some((_, Ok(converted))) => Ok(Cow::Borrowed(converted)),
            Some((_, Err(reason))) => {
                Err(ApplyError::Failed(ApiError::without_reason(500, format!("{purpose}{reason}"))))
            }
            None => Err(ApplyError::ConversionRequired(Conversion { object: object.clone(), to: to.to_owned() })),
        }
    }

    /// Adds the result of a required conversion. A result that does not match the schema of its version counts as
    /// an error.
    pub fn add_conversion(&mut self, conversion: Conversion, converted: ApiResult<Value>) {
        let schema = match self.schemas.map(|schemas| schemas.version(&conversion.to)) {
            Some(VersionState::Served(schema)) => Some(schema),
            _ => None,
        };
        let result = converted.map_err(|error| error.message).and_then(|converted| {
            match validate::validation_error(schema.as_deref(), &converted) {
                Some(error) => Err(error),
                None => Ok(converted),
            }
        });
        self.conversions.push((conversion, result));
    }
}

/// Schema of the request's version or of another one.
#[derive(Debug)]
pub(super) enum VersionSchema<'a> {
    Own(Option<&'a Schema>),
    Other(SchemaRef),
}

impl VersionSchema<'_> {
    pub fn get(&self) -> Option<&Schema> {
        match self {
            Self::Own(schema) => *schema,
            Self::Other(schema) => Some(schema),
        }
    }
}

/// Adapts an owned field set to a changed schema: for a field that has become atomic, the whole field is owned.
pub(super) fn reconcile(schema: Option<&Schema>, set: &FieldSet) -> FieldSet {
    let Some(schema) = schema else { return set.clone() };
    if set.children.is_empty() {
        return set.clone();
    }
    let is_owned_as_a_whole = match schema.ty {
        Type::Array => schema.list_type == ListType::Atomic,
        Type::Object => schema.is_atomic,
        _ => false,
    };
    if is_owned_as_a_whole {
        return FieldSet { is_member: true, ..FieldSet::default() };
    }
    let mut out = FieldSet { is_member: set.is_member, ..FieldSet::default() };
    for (element, child) in &set.children {
        let node = match element {
            PathElement::Field(name) => schema.child(name),
            _ => schema.items.as_deref(),
        };
        // Paths that the schema does not define are kept.
        out.children.insert(element.clone(), reconcile(node, child));
    }
    out
}
