//! Operations of the search API: GETs with query parameters.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use super::call::SearchCall;
use super::openapi::{Operation, Parameter, Q, ResponseSchemas};
use crate::resource::openapi::Document;
use crate::resource::schema::JSON;
use crate::resource::{Call, Definition, RequestFeatures, Resource};

/// A resource without objects: a GET whose parameters determine the response. Each operation has a file of its own and
/// an entry in the list of the group.
pub(super) trait SearchOperation: Send + Sync {
    const DEFINITION: Definition;
    const SUMMARY: &'static str;
    /// By default only a search query.
    const PARAMETERS: &'static [Parameter] = &[Q];
    /// True if parameters name an object of a member.
    const NAMES_OBJECT: bool = false;
    /// By default an object of the resource's kind.
    const RESPONSES: ResponseSchemas = &[(JSON, &[Self::DEFINITION.kind])];

    /// See [`Resource::is_long_running`].
    fn is_long_running(_requested: RequestFeatures) -> bool {
        false
    }

    /// Adds the schemas of the responses.
    fn add_schemas(_document: &mut Document) {}

    fn respond(call: SearchCall<'_>) -> impl Future<Output = Result<Response, ApiError>> + Send;
}

impl<O: SearchOperation> Resource for O {
    fn definition(&self) -> &Definition {
        const { &O::DEFINITION }
    }

    fn is_long_running(&self, requested: RequestFeatures) -> bool {
        O::is_long_running(requested)
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        let (summary, parameters, names_object, responses) = (O::SUMMARY, O::PARAMETERS, O::NAMES_OBJECT, O::RESPONSES);
        Operation { summary, parameters, names_object, responses }.describe(O::DEFINITION.resource, document);
        O::add_schemas(document);
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move { O::respond(SearchCall::new(call).await?).await })
    }
}
