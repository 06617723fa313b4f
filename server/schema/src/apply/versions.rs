//! Conversion of objects to the versions of their managers: an entry of `metadata.managedFields` has fields of its
//! own version.
//!
//! Conversion can require a webhook call, but this crate is pure. When a conversion is missing, an operation returns
//! [`Stop::Needs`]; the registry performs the conversion and repeats the operation. Objects with a single version
//! need no conversion.

use std::borrow::Cow;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::Value;

use super::path::{FieldSet, PathElement};
use super::validate;
use crate::{ListType, Schema, SchemaRef, Type};

/// State of a version of a kind.
#[derive(Debug, Clone)]
pub enum Version {
    Known(SchemaRef),
    /// No longer served; its entries are dropped.
    Gone,
    /// Conversion to the version is impossible, with the error.
    Refused(String),
}

/// Schemas of a kind by version.
pub trait VersionSchemas: std::fmt::Debug + Send + Sync {
    /// Another version of the kind, in which managers may have written fields.
    fn version(&self, _api_version: &str) -> Version {
        Version::Gone
    }
}

/// Reason why an operation was stopped.
#[derive(Debug)]
pub enum Stop {
    Needs(Conversion),
    Refused(ApiError),
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// A required conversion of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversion {
    pub object: Value,
    pub to: String,
}

/// Versions of a kind, and the conversions performed so far or their errors.
#[derive(Debug, Default)]
pub struct Versions<'a> {
    /// `None` for a kind with one version.
    schemas: Option<&'a dyn VersionSchemas>,
    made: Vec<(Conversion, Result<Value, String>)>,
}

impl<'a> Versions<'a> {
    pub fn of(schemas: &'a dyn VersionSchemas) -> Self {
        Self { schemas: Some(schemas), made: Vec::new() }
    }

    /// The schema of a version; `None` if it is not served. `own` is the version of the request, `schema` its
    /// schema.
    pub(super) fn schema<'s>(
        &self,
        version: &str,
        own: &str,
        schema: Option<&'s Schema>,
    ) -> Result<Option<VersionSchema<'s>>, Stop> {
        if version == own {
            return Ok(Some(VersionSchema::Own(schema)));
        }
        match self.schemas.map_or(Version::Gone, |schemas| schemas.version(version)) {
            Version::Known(schema) => Ok(Some(VersionSchema::Other(schema))),
            Version::Gone => Ok(None),
            Version::Refused(why) => Err(Stop::Refused(ApiError::without_reason(500, why))),
        }
    }

    /// Converts an object to another version; `purpose` is the prefix of an error.
    pub(super) fn convert<'v>(
        &'v self,
        object: &'v Value,
        (from, to): (&str, &str),
        purpose: &str,
    ) -> Result<Cow<'v, Value>, Stop> {
        if from == to {
            return Ok(Cow::Borrowed(object));
        }
        match self.made.iter().find(|(conversion, _)| conversion.to == to && conversion.object == *object) {
            Some((_, Ok(converted))) => Ok(Cow::Borrowed(converted)),
            Some((_, Err(why))) => Err(Stop::Refused(ApiError::without_reason(500, format!("{purpose}{why}")))),
            None => Err(Stop::Needs(Conversion { object: object.clone(), to: to.to_owned() })),
        }
    }

    /// Stores the result of a required conversion. A result that does not match the schema of its version counts as
    /// an error.
    pub fn learn(&mut self, conversion: Conversion, converted: ApiResult<Value>) {
        let schema = match self.schemas.map(|schemas| schemas.version(&conversion.to)) {
            Some(Version::Known(schema)) => Some(schema),
            _ => None,
        };
        let fitting = converted.map_err(|error| error.message).and_then(|converted| {
            match validate::faults(schema.as_deref(), &converted) {
                Some(faults) => Err(faults),
                None => Ok(converted),
            }
        });
        self.made.push((conversion, fitting));
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
    let is_one_value = match schema.ty {
        Type::Array => schema.list_type == ListType::Atomic,
        Type::Object => schema.atomic,
        _ => false,
    };
    if is_one_value {
        return FieldSet { member: true, ..FieldSet::default() };
    }
    let mut out = FieldSet { member: set.member, ..FieldSet::default() };
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
