//! A resource whose objects are kept in the control plane.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use super::StoredGroup;
use super::stored_request::StoredRequest;
use super::writer::Writer;

use crate::resource::openapi::Document;
use crate::resource::{Call, Definition, Resource};

/// A resource of a [`StoredGroup`], or a subresource.
pub struct StoredResource {
    pub definition: Definition,
    pub group: StoredGroup,
    /// Corrects the control plane's description.
    pub describe: fn(&mut Document),
}

impl Resource for StoredResource {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn stored_group(&self) -> Option<StoredGroup> {
        Some(self.group)
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        (self.describe)(document);
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, request } = call;
            let user = &context.user;
            let writer = (!user.is_master()).then_some(Writer { delegated: &server.delegated, user });
            let route = context.attributes.route.resource_route().ok_or_else(ApiError::unknown_resource)?;
            StoredRequest { group: self.group, server, context, route, writer }.serve(request).await
        })
    }
}
