module crowsnest/ground

go 1.26
