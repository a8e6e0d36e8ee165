"""What tests are put into: scripted worlds, stages that take turns, transports."""
