//! crowsnest-controllers
