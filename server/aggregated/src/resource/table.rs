//! Tables of the aggregated groups.

use std::borrow::Cow;

use crowsnest_apimachinery::printers::columns::KindPrinter;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_schema::table::{IncludeObject, ListMeta, Now, Printer, Rows, published};
use serde_json::Value;

/// A requested table.
pub struct TableRequest {
    printer: Printer,
    include: IncludeObject,
}

impl TableRequest {
    /// Reads `includeObject`. Without columns, a table has those of every object.
    pub fn parse(columns: Option<&'static KindPrinter>, query: &Query) -> Result<Self, ApiError> {
        let include = IncludeObject::parse(query.get("includeObject").unwrap_or_default())?;
        let printer = columns.map_or(Printer::Generic, Printer::BuiltIn);
        Ok(Self { printer, include })
    }

    /// One object or a list as a table.
    pub fn whole(&self, value: &Value, now: Now) -> Value {
        let meta = ListMeta::of(value);
        let one = std::slice::from_ref(value);
        let objects = value.get("items").and_then(Value::as_array).map_or(one, Vec::as_slice);
        self.rows(now).table(Some(self.columns()), objects, &meta)
    }

    /// A watched object; only the first event repeats the columns.
    pub fn event(&self, object: &Value, first: bool, now: Now) -> Value {
        let columns = first.then(|| self.columns());
        self.rows(now).table(columns, std::slice::from_ref(object), &ListMeta::of(object))
    }

    /// Objects of these groups have one version.
    fn rows(&self, now: Now) -> Rows<'_> {
        Rows { printer: &self.printer, include: self.include, now, internal: |object| Cow::Borrowed(object) }
    }

    fn columns(&self) -> Vec<Value> {
        self.printer.columns(&published)
    }
}
