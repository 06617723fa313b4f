//! Position of a merge in the Go types that a schema describes, and the patch tags of their fields.

use crowsnest_apimachinery::status::ApiResult;

use super::internal_error;
use crate::{Field, PatchStrategy, Schema, Type};

/// Position of a merge in a schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaPosition<'s> {
    /// `None` for undeclared fields.
    schema: Option<&'s Schema>,
    /// True if the Go type is a pointer.
    is_pointer: bool,
}

/// The tags `patchStrategy` and `patchMergeKey`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PatchTags<'s> {
    pub(super) strategy: PatchStrategy,
    pub(super) merge_key: Option<&'s str>,
}

impl<'s> SchemaPosition<'s> {
    pub(super) fn root(schema: &'s Schema) -> Self {
        Self { schema: Some(schema), is_pointer: false }
    }

    /// `reflect.Kind` of the type.
    pub fn kind(self) -> &'static str {
        match self.schema {
            _ if self.is_pointer => "ptr",
            Some(schema) if schema.name.is_none() => match schema.ty {
                Type::Object => "map",
                Type::Array | Type::Bytes => "slice",
                Type::Boolean => "bool",
                Type::Number => "float64",
                Type::Integer if schema.format.as_deref() == Some("int32") => "int32",
                Type::Integer => "int64",
                Type::String => "string",
                _ => "struct",
            },
            _ => "struct",
        }
    }

    /// The declared field; `None` for a field of an untyped object. Fails with the error of Kubernetes' `strategicpatch`
    /// if there is no such field.
    fn field(self, key: &str) -> ApiResult<Option<&'s Field>> {
        let Some(schema) = self.schema else { return Ok(None) };
        let is_definition = schema.name.is_some();
        if !is_definition
            && schema.additional_properties.is_none()
            && (schema.preserves_unknown_fields || schema.ty == Type::Any)
        {
            return Ok(schema.field(key));
        }
        if !is_definition && schema.properties.is_empty() {
            let kind = Self { is_pointer: false, ..self }.kind();
            return Err(internal_error(format!(
                "merging an object in json but data type is not struct, instead is: {kind}"
            )));
        }
        let find_ignoring_case =
            || schema.properties.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, f)| f);
        match schema.field(key).or_else(find_ignoring_case) {
            Some(field) => Ok(Some(field)),
            None => Err(internal_error(format!(
                "unable to find api field in struct {} for the json field {}",
                schema.short_name(),
                serde_json::Value::from(key)
            ))),
        }
    }

    /// A field that contains a map.
    pub(super) fn map(self, key: &str) -> ApiResult<(SchemaPosition<'s>, PatchTags<'s>)> {
        let Some(field) = self.field(key)? else { return Ok((SchemaPosition::undeclared(), PatchTags::default())) };
        Ok((SchemaPosition { schema: Some(&field.node), is_pointer: is_pointer(field) }, patch_tags(field)))
    }

    /// The elements of a field that contains a list.
    pub(super) fn list(self, key: &str) -> ApiResult<(SchemaPosition<'s>, PatchTags<'s>)> {
        let Some(field) = self.field(key)? else { return Ok((SchemaPosition::undeclared(), PatchTags::default())) };
        let schema: &Schema = &field.node;
        let element = match schema.ty {
            Type::Array => {
                let is_pointer = field.go_field.as_ref().is_some_and(|go_field| go_field.ty.starts_with("[]*"));
                SchemaPosition { schema: schema.items.as_deref(), is_pointer }
            }
            Type::Bytes => SchemaPosition::undeclared(),
            _ if is_pointer(field) => SchemaPosition { schema: Some(schema), is_pointer: false },
            _ => return Err(internal_error(format!("expected slice or array type, but got: {}", self.kind()))),
        };
        match element.schema {
            Some(element) if schema.ty == Type::Array && element.ty == Type::Array => {
                Err(internal_error("unexpected slice of slice"))
            }
            _ => Ok((element, patch_tags(field))),
        }
    }

    fn undeclared() -> Self {
        Self { schema: None, is_pointer: false }
    }
}

fn is_pointer(field: &Field) -> bool {
    field.go_field.as_ref().is_some_and(|go_field| go_field.is_pointer())
}

fn patch_tags(field: &Field) -> PatchTags<'_> {
    PatchTags { strategy: field.patch_strategy, merge_key: field.patch_merge_key.as_deref() }
}
