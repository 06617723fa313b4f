//! Generic create, get, list, update, patch, delete and watch of any resource.

pub mod resource;
pub mod strategy;
