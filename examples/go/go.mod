module switchyard.example/objects

go 1.19
