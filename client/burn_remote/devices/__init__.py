"""Remote and local devices: how a program opens, shares and names them."""
