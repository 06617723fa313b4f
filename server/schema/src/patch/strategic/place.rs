//! Position of a merge in a Go type, and the patch tags of its fields.

use crowsnest_apimachinery::status::ApiResult;

use super::failed;
use crate::{Field, PatchStrategy, Schema, Type};

#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaPosition<'s> {
    /// `None` for undeclared fields.
    schema: Option<&'s Schema>,
    pointer: bool,
}

/// The tags `patchStrategy` and `patchMergeKey`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Declared<'s> {
    pub(super) strategy: PatchStrategy,
    pub(super) merge_key: Option<&'s str>,
}

impl<'s> SchemaPosition<'s> {
    pub(super) fn root(schema: &'s Schema) -> Self {
        Self { schema: Some(schema), pointer: false }
    }

    /// `reflect.Kind` of the type.
    pub fn kind(self) -> &'static str {
        match self.schema {
            _ if self.pointer => "ptr",
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

    fn field(self, key: &str) -> ApiResult<Option<&'s Field>> {
        let Some(schema) = self.schema else { return Ok(None) };
        let named = schema.name.is_some();
        if !named && schema.additional.is_none() && (schema.preserve_unknown || schema.ty == Type::Any) {
            return Ok(schema.field(key));
        }
        if !named && schema.properties.is_empty() {
            let kind = Self { pointer: false, ..self }.kind();
            return Err(failed(format!("merging an object in json but data type is not struct, instead is: {kind}")));
        }
        let folded = || schema.properties.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, f)| f);
        match schema.field(key).or_else(folded) {
            Some(field) => Ok(Some(field)),
            None => Err(failed(format!(
                "unable to find api field in struct {} for the json field {}",
                schema.short_name(),
                serde_json::Value::from(key)
            ))),
        }
    }

    /// A field that contains a map.
    pub(super) fn map(self, key: &str) -> ApiResult<(SchemaPosition<'s>, Declared<'s>)> {
        let Some(field) = self.field(key)? else { return Ok((SchemaPosition::nowhere(), Declared::default())) };
        Ok((SchemaPosition { schema: Some(&field.node), pointer: is_pointer(field) }, declared(field)))
    }

    /// The elements of a field that contains a list.
    pub(super) fn list(self, key: &str) -> ApiResult<(SchemaPosition<'s>, Declared<'s>)> {
        let Some(field) = self.field(key)? else { return Ok((SchemaPosition::nowhere(), Declared::default())) };
        let schema: &Schema = &field.node;
        let element = match schema.ty {
            Type::Array => {
                let pointer = field.go.as_ref().is_some_and(|go| go.ty.starts_with("[]*"));
                SchemaPosition { schema: schema.items.as_deref(), pointer }
            }
            Type::Bytes => SchemaPosition::nowhere(),
            _ if is_pointer(field) => SchemaPosition { schema: Some(schema), pointer: false },
            _ => return Err(failed(format!("expected slice or array type, but got: {}", self.kind()))),
        };
        match element.schema {
            Some(element) if schema.ty == Type::Array && element.ty == Type::Array => {
                Err(failed("unexpected slice of slice"))
            }
            _ => Ok((element, declared(field))),
        }
    }

    fn nowhere() -> Self {
        Self { schema: None, pointer: false }
    }
}

fn is_pointer(field: &Field) -> bool {
    field.go.as_ref().is_some_and(|go| go.is_pointer())
}

fn declared(field: &Field) -> Declared<'_> {
    Declared { strategy: field.patch_strategy, merge_key: field.patch_merge_key.as_deref() }
}
