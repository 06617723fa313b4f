//! APIService: availability, proxying to extension servers, merged discovery.
