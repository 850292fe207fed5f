"""The study of programs that have just begun, or whose lengths vary."""
