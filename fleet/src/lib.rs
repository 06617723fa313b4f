//! crowsnest-fleet
