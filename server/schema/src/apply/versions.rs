//! Objects in the versions that their managers wrote them in: an entry of `metadata.managedFields` names fields of its version.
//!
//! Conversion may ask a webhook, and everything here is pure. So what is decided here asks for a conversion it lacks by giving up
//! with [`Stop::Needs`]; the registry makes it and has it decided again. Objects that are written in one version need none.

use std::borrow::Cow;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::Value;

use super::path::{FieldSet, PathElement};
use super::typed;
use crate::{ListType, Schema, SchemaRef, Type};

/// What a kind is in some version.
#[derive(Debug, Clone)]
pub enum Version {
    Known(SchemaRef),
    /// No longer served: what was written in it belongs to nobody.
    Gone,
    /// Nothing can be said of objects with fields of it, and this is why.
    Refused(String),
}

/// Schemas of one kind, by version.
pub trait VersionSchemas: std::fmt::Debug + Send + Sync {
    /// The kind in another version than this one, in which managers may have written fields.
    fn version(&self, _api_version: &str) -> Version {
        Version::Gone
    }
}

/// Why nothing was decided.
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

/// An object that is wanted in another version.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversion {
    pub object: Value,
    pub to: String,
}

/// The versions of one kind, and the conversions that were made so far, or why they could not.
#[derive(Debug, Default)]
pub struct Versions<'a> {
    /// Absent for a kind with one version.
    schemas: Option<&'a dyn VersionSchemas>,
    made: Vec<(Conversion, Result<Value, String>)>,
}

impl<'a> Versions<'a> {
    pub fn of(schemas: &'a dyn VersionSchemas) -> Self {
        Self { schemas: Some(schemas), made: Vec::new() }
    }

    /// The schema of a version; `None` when it is gone. `own` is the version of the request, `schema` its schema.
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

    /// The object in another version; `purpose` says in an error what that was for.
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

    /// Takes a conversion that was asked for. One that does not fit its version's schema is none: who knows what of it is whose.
    pub fn learn(&mut self, conversion: Conversion, converted: ApiResult<Value>) {
        let schema = match self.schemas.map(|schemas| schemas.version(&conversion.to)) {
            Some(Version::Known(schema)) => Some(schema),
            _ => None,
        };
        let fitting = converted.map_err(|error| error.message).and_then(|converted| {
            match typed::faults(schema.as_deref(), &converted) {
                Some(faults) => Err(faults),
                None => Ok(converted),
            }
        });
        self.made.push((conversion, fitting));
    }
}

/// A schema of the request's version, or of another.
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

/// What a manager owns after its version's schema has changed: of what has become one value, it owns the value.
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
        // What the schema does not know stays as it is.
        out.children.insert(element.clone(), reconcile(node, child));
    }
    out
}
